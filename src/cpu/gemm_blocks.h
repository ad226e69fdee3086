/* The blocked product for one type: included by gemm.c once with REAL = float and once with double. NAME(x) makes x_f32 or x_f64. */

/* Rows (or columns) [i0, i0 + extent) over k [k0, k0 + depth) of a source, as panels of `width` rows: panel, then k, then row; zeros fill the last panel. */
static void NAME(pack)(const gt__gemm_source *source, const void *data, int64_t i0, int64_t extent, int64_t k0, int64_t depth,
                       int64_t width, REAL *to) {
    REAL buffer[GT__CHUNK];
    int64_t padded = (extent + width - 1) / width * width;
    if (source->along_k) {
        for (int64_t i = 0; i < padded; i++) {
            REAL *column = to + i / width * width * depth + i % width;
            if (i < extent) {
                const REAL *run = source->NAME(fetch)(source, data, i0 + i, k0, depth, buffer);
                for (int64_t k = 0; k < depth; k++) column[k * width] = run[k];
            } else {
                for (int64_t k = 0; k < depth; k++) column[k * width] = 0;
            }
        }
        return;
    }
    for (int64_t k = 0; k < depth; k++) {
        const REAL *run = source->NAME(fetch)(source, data, k0 + k, i0, extent, buffer);
        for (int64_t i = 0; i < padded; i += width) {
            REAL *row = to + i * depth + k * width;
            int64_t valid = GT__MIN(extent - i, width);
            for (int64_t lane = 0; lane < valid; lane++) row[lane] = run[i + lane];
            for (int64_t lane = valid; lane < width; lane++) row[lane] = 0;
        }
    }
}

/* The finished sums of a tile go to C: bias, relu, what C held, dtype. */
static void NAME(finish)(const gt__gemm *gemm, const block_place *place, int64_t i0, int64_t rows, int64_t j0, int64_t columns, REAL *sums,
                         int64_t sums_stride) {
    REAL bias[BLOCK_N], held[BLOCK_N];
    if (place->bias) NAME(gt__cpu_load)(bias, gt__cpu_at(place->bias, gemm->bias_dtype, j0), gemm->bias_dtype, 1, columns);
    for (int64_t i = 0; i < rows; i++) {
        REAL *row = sums + i * sums_stride;
        if (place->bias)
            for (int64_t j = 0; j < columns; j++) row[j] += bias[j];
        if (gemm->relu)
            for (int64_t j = 0; j < columns; j++) row[j] = row[j] <= 0 ? 0 : row[j]; /* NaN stays */
        void *to = gt__cpu_at_mut(place->c, gemm->c_dtype, (i0 + i) * gemm->row_stride + j0 * gemm->column_stride);
        if (gemm->accumulate) {
            NAME(gt__cpu_load)(held, to, gemm->c_dtype, gemm->column_stride, columns);
            for (int64_t j = 0; j < columns; j++) row[j] += held[j];
        }
        NAME(gt__cpu_store)(to, gemm->c_dtype, gemm->column_stride, row, columns);
    }
}

/* Every slots-th tile from `slot` on, with that slot's room for panels. */
static void NAME(tiles)(void *argument, int64_t slot, int64_t end) {
    (void)end;
    const gemm_job *job = argument;
    const gt__gemm *gemm = job->gemm;
    int64_t mr = job->mr, nr = job->nr;
    REAL *packed_a = (REAL *)(void *)((char *)job->room + slot * job->room_each);
    REAL *packed_b = packed_a + BLOCK_M * BLOCK_K;
    REAL *sums = packed_b + BLOCK_N * BLOCK_K;
    for (int64_t tile = slot; tile < job->tiles; tile += job->slots) {
        block_place place;
        int64_t i0, j0;
        tile_place(job, tile, &place, &i0, &j0);
        int64_t rows = GT__MIN(job->tile_m, gemm->m - i0), columns = GT__MIN(job->tile_n, gemm->n - j0);
        int64_t padded_rows = (rows + mr - 1) / mr * mr, padded_columns = (columns + nr - 1) / nr * nr;
        memset(sums, 0, (size_t)(padded_rows * padded_columns) * sizeof(REAL));
        for (int64_t k0 = 0; k0 < gemm->k; k0 += BLOCK_K) {
            int64_t depth = GT__MIN(gemm->k - k0, BLOCK_K);
            NAME(pack)(&gemm->a, place.a, i0, rows, k0, depth, mr, packed_a);
            NAME(pack)(&gemm->b, place.b, j0, columns, k0, depth, nr, packed_b);
            for (int64_t j = 0; j < padded_columns; j += nr)
                for (int64_t i = 0; i < padded_rows; i += mr)
                    job->NAME(kernel)(depth, packed_a + i * depth, packed_b + j * depth, sums + i * padded_columns + j, padded_columns);
        }
        NAME(finish)(gemm, &place, i0, rows, j0, columns, sums, padded_columns);
    }
}
