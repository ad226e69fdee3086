/* Contract P2: a hostile file is BAD_FILE, and takes no more memory than it is long; an odd but valid one loads. */
#include "io/host_memory.h"
#include "io/support.h"

static gt_status open_watched(const char *path, size_t file_size, gt_safetensors **file) {
    host_memory_watch(-1);
    *file = NULL;
    gt_status status = gt_safetensors_open(path, file);
    /* The file's record and its path are no larger for a larger file. */
    EXPECT(host_memory_largest() <= file_size || host_memory_largest() <= 512);
    return status;
}

typedef struct hostile {
    const char *header;
    size_t data;     /* bytes behind it */
    uint64_t length; /* what the file says of the header's; 0: the truth */
    const char *message;
} hostile;

#define T(name, dtype, shape, begin, end)                                                                                                  \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static const hostile cases[] = {
    /* the header's length */
    {"{}", 0, UINT64_MAX, "the header should have 18446744073709551615 bytes, the file has 2"},
    {"{}", 0, UINT64_C(1) << 63, "the header should have 9223372036854775808 bytes"},
    {"{}", 0, 3, "the header should have 3 bytes, the file has 2"},
    {"{}", 10, 100, "the header should have 100 bytes, the file has 12"},
    /* places */
    {"{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[2]", 4, 12) "}", 12, 0, "tensor \"b\": data_offsets [4,12] overlap those of \"a\""},
    {"{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[2]", 0, 8) "}", 8, 0, "overlap"},
    {"{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[0]", 4, 4) "}", 8, 0, "overlap"},
    {"{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[2]", 12, 20) "}", 20, 0, "\"b\": data_offsets [12,20] leave a hole of 4 bytes"},
    {"{" T("a", "F32", "[2]", 4, 12) "}", 12, 0, "leave a hole of 4 bytes"},
    {"{" T("a", "F32", "[2]", 0, 8) "}", 9, 0, "the tensors end after 8 bytes of data, the file after 9"},
    {"{}", 5, 2, "the tensors end after 0 bytes of data, the file after 5"},
    {"{" T("a", "F32", "[2]", 0, 8) "}", 7, 0, "tensor \"a\": data_offsets [0,8] end behind the 7 bytes of data"},
    {"{" T("a", "F32", "[2]", 8, 0) "}", 8, 0, "[8,0] end before they begin"},
    {"{" T("a", "F32", "[2]", 0, 18446744073709551615) "}", 8, 0, "data_offsets has 18446744073709551615; expected a whole number"},
    {"{" T("a", "F32", "[2]", 9223372036854775800, 9223372036854775807) "}", 8, 0, "end behind the 8 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, 0, "data_offsets has 1 numbers, not 2"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, 0, "data_offsets has more than 2 numbers"},
    /* shapes and dtypes */
    {"{" T("a", "F32", "[3]", 0, 8) "}", 8, 0, "shape [3] of F32 takes 12 bytes, its data_offsets [0,8] are 8"},
    {"{" T("a", "F64", "[]", 0, 4) "}", 4, 0, "shape [] of F64 takes 8 bytes"},
    {"{" T("a", "F32", "[-2]", 0, 8) "}", 8, 0, "shape has -2; expected a whole number from 0"},
    {"{" T("a", "F32", "[2.0]", 0, 8) "}", 8, 0, "shape has 2.0; expected"},
    {"{" T("a", "F32", "[2e0]", 0, 8) "}", 8, 0, "shape has 2e0; expected"},
    {"{" T("a", "F32", "[\"2\"]", 0, 8) "}", 8, 0, "expected a whole number"},
    {"{" T("a", "F32", "[4611686018427387906]", 0, 8) "}", 8, 0, "is larger than an address range"},
    {"{" T("a", "U8", "[4294967296,4294967296]", 0, 0) "}", 0, 0, "is larger than an address range"},
    {"{" T("a", "U8", "[0,9223372036854775807,4]", 0, 0) "}", 0, 0, "is larger than an address range"},
    {"{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1, 0, "shape has more than 8 numbers"},
    {"{" T("a", "F128", "[2]", 0, 32) "}", 32, 0, "tensor \"a\": dtype F128 is unknown"},
    {"{" T("a", "f32", "[2]", 0, 8) "}", 8, 0, "dtype f32 is unknown"},
    {"{" T("a", "F4", "[3]", 0, 1) "}", 1, 0, "does not fill whole bytes"},
    {"{\"a\":{\"dtype\":3,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, 0, "dtype 3 is unknown"},
    /* names and fields */
    {"{" T("a", "U8", "[2]", 0, 2) "," T("a", "U8", "[2]", 2, 4) "}", 4, 0, "tensor \"a\" is there twice"},
    {"{" T("a", "U8", "[2]", 0, 2) "," T("\\u0061", "U8", "[2]", 2, 4) "}", 4, 0, "tensor \"a\" is there twice"},
    {"{" T("a\\u0000b", "U8", "[2]", 0, 2) "}", 2, 0, "has a NUL character"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0, "tensor \"a\" has dtype twice"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2]}}", 0, 0, "tensor \"a\" has no data_offsets"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,2]}}", 2, 0, "tensor \"a\" has no shape"},
    {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,2]}}", 2, 0, "tensor \"a\" has no dtype"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2],\"more\":{}}}", 2, 0, "tensor \"a\" has an unknown field, more"},
    {"{\"a\":[]}", 0, 0, "tensor \"a\" is not described by an object"},
    {"{\"a\":null}", 0, 0, "tensor \"a\" is not described by an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, 0, "__metadata__ has something else than a text for \"a\""},
    {"{\"__metadata__\":[]}", 0, 0, "__metadata__ is not an object of texts"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, 0, "__metadata__ twice"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, 0, "__metadata__ has \"k\" twice"},
    {"{\"__metadata__\":{\"k\":\"1\\u0000\"}}", 0, 0, "has a NUL character"},
    /* JSON */
    {"  ", 0, 0, "the end before all brackets are closed"},
    {"[]", 0, 0, "does not begin with a brace"},
    {" {}", 0, 0, "does not begin with a brace"},
    {"{", 8, 0, "the end before all brackets are closed"},
    {"{} x", 0, 0, "something after the end"},
    {"{}{}", 0, 0, "something after the end"},
    {"{\"a\"}", 0, 0, "a key without a colon"},
    {"{\"a\":}", 0, 0, "something that is no value"},
    {"{\"a\":{},}", 0, 0, "something else than a key in quotes"},
    {"{a:1}", 0, 0, "something else than a key in quotes"},
    {"{\"a\":[1,]}", 0, 0, "something that is no value"},
    {"{\"a\":[1 2]}", 0, 0, "a value without a comma"},
    {"{\"a\":[1}}", 0, 0, "a value without a comma"},
    {"{\"a\":[01]}", 0, 0, "a number that begins with 0"},
    {"{\"a\":[-]}", 0, 0, "a number without digits"},
    {"{\"a\":[1.]}", 0, 0, "a number without digits after the point"},
    {"{\"a\":[1e]}", 0, 0, "a number without an exponent"},
    {"{\"a\":[NaN]}", 0, 0, "something that is no value"},
    {"{\"a\":tru}", 0, 0, "something that is no value"},
    {"{\"a\n\":1}", 0, 0, "a control character in a string"},
    {"{\"a", 0, 0, "a string that does not end"},
    {"{\"a\\", 0, 0, "an unknown escape"},
    {"{\"\\x\":1}", 0, 0, "an unknown escape"},
    {"{\"\\u12\":1}", 0, 0, "an escape that is no character"},
    {"{\"\\ud800\":1}", 0, 0, "an escape that is no character"},
    {"{\"\\ud800\\u0041\":1}", 0, 0, "an escape that is no character"},
    {"{\"\xff\":1}", 0, 0, "a string that is not UTF-8"},
    {"{\"\xc0\xaf\":1}", 0, 0, "a string that is not UTF-8"},
    {"{\"a\":{\"b\":{\"c\":[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]}}}", 0, 0, "brackets nested too deep"},
};

TEST(contract, P2_hostile_files_are_refused_with_the_reason) {
    gt_context *ctx = test_context(t);
    gt_module *net = gt_nn_linear(ctx, 2, 2, NULL);
    size_t size = 0;
    unsigned char *bits = io_bits(net, &size);
    char *path = io_path(t, "hostile.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const hostile *c = &cases[i];
        io_write_header(path, c->header, c->data, c->length);
        gt_safetensors *file;
        EXPECT_STATUS(open_watched(path, 8 + strlen(c->header) + c->data, &file), GT_BAD_FILE);
        EXPECT_ERROR_HAS(c->message);
        EXPECT(file == NULL);
        EXPECT_STATUS(gt_module_load(net, path, NULL), GT_BAD_FILE);
    }
    io_check_bits(net, bits, size);
    free(bits);
    free(path);
    gt_module_destroy(net);
}

TEST(contract, P2_files_that_are_no_safetensors_files) {
    gt_safetensors *file;
    static const char text[] = "This is a text, and no safetensors file at all.";
    char *path = io_path(t, "text");
    for (size_t size = 0; size < sizeof text; ++size) {
        io_write(path, text, size);
        CHECK_STATUS(open_watched(path, size, &file), GT_BAD_FILE);
    }
    free(path);
    CHECK_STATUS(gt_safetensors_open(test_temp_path(t, "nothing"), &file), GT_IO);
    CHECK_ERROR_HAS("cannot open");
    CHECK_STATUS(gt_safetensors_open("/", &file), GT_IO);
    CHECK_ERROR_HAS("found a folder");
    CHECK_STATUS(gt_safetensors_open("/dev/zero", &file), GT_IO);
}

/* Brackets by the million: the parser has no stack that could overflow, and no list that could grow. */
TEST(contract, P2_deep_nesting_and_large_headers_take_no_memory) {
    enum { SIZE = 4 << 20 };
    static const char *const pieces[] = {"[", "{\"a\":", "\"", "{\"__metadata__\":{", "{\"a\":{\"dtype\":\"U8\",\"shape\":[0,"};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; ++i) {
        char *header = malloc(SIZE + 64);
        CHECK(header != NULL);
        size_t n = 0;
        for (size_t length = strlen(pieces[i]); n + length < SIZE; n += length) memcpy(header + n, pieces[i], length);
        header[n] = '\0';
        char *path = io_path(t, "deep.safetensors");
        io_write_header(path, header, 0, 0);
        gt_safetensors *file;
        CHECK_STATUS(open_watched(path, 8 + n, &file), GT_BAD_FILE);
        free(path);
        free(header);
    }
}

/* The smallest tensors and texts that there are, many of them: the tables stay smaller than the file. */
TEST(contract, P2_many_small_tensors_and_texts_take_no_more_than_the_file) {
    enum { MANY = 20000 };
    for (int kind = 0; kind < 2; ++kind) {
        char *header = malloc((size_t)MANY * 70 + 100);
        CHECK(header != NULL);
        size_t n = (size_t)sprintf(header, kind ? "{\"__metadata__\":{" : "{");
        for (int i = 0; i < MANY; ++i)
            n += (size_t)sprintf(header + n, kind ? "%s\"%x\":\"\"" : "%s\"%x\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[%d,%d]}",
                                 i ? "," : "", (unsigned)i, i, i + 1);
        n += (size_t)sprintf(header + n, kind ? "}}" : "}");
        size_t data = kind ? 0 : MANY;
        char *path = io_path(t, "many.safetensors");
        io_write_header(path, header, data, 0);
        gt_safetensors *file;
        CHECK_OK(open_watched(path, 8 + n + data, &file));
        CHECK_EQ_INT(kind ? gt_safetensors_metadata_count(file) : gt_safetensors_count(file), MANY);
        if (kind == 0) {
            gt_safetensors_info info = io_info(file, "3e8");
            CHECK_EQ_INT(*(const unsigned char *)info.data, 1000 % 256);
        }
        gt_safetensors_close(file);
        free(path);
        free(header);
    }
}

TEST_DEVICES(contract, P2_odd_but_valid_files_load) {
    gt_context *ctx = test_context(t);
    static const char header[] = "{ \"z\\u00e4 \\ud83d\\ude00\" : {\"data_offsets\":[ 8 ,12],\n\t\"shape\":[], \"dtype\":\"F32\"},"
                                 "\"__metadata__\":{\"format\":\"pt\",\"\":\"\",\"text\":\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\"},"
                                 "\"empty\":{\"dtype\":\"F64\",\"shape\":[0,3],\"data_offsets\":[8,8]},"
                                 "\"bool\":{\"dtype\":\"BOOL\",\"shape\":[4],\"data_offsets\":[12,16]},"
                                 "\"\":{\"dtype\":\"I32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}   \n  ";
    char *path = io_path(t, "odd.safetensors");
    io_write_header(path, header, 16, 0);
    gt_safetensors *file;
    CHECK_OK(open_watched(path, 8 + strlen(header) + 16, &file));
    CHECK_EQ_INT(gt_safetensors_count(file), 4);
    CHECK_EQ_INT(gt_safetensors_metadata_count(file), 3);
    const char *text = NULL;
    CHECK_OK(gt_safetensors_metadata_find(file, "text", &text));
    CHECK_EQ_STR(text, "a\"\\/\b\f\n\r\t");
    CHECK_OK(gt_safetensors_metadata_find(file, "", &text));
    CHECK_EQ_STR(text, "");
    CHECK_STATUS(gt_safetensors_metadata_find(file, "forma", &text), GT_NOT_FOUND);

    CHECK_OK(gt_scope_begin(ctx));
    int64_t index;
    CHECK_OK(gt_safetensors_find(file, "z\xc3\xa4 \xf0\x9f\x98\x80", &index));
    gt_tensor *scalar = CHECK_TENSOR(gt_safetensors_read(ctx, file, index));
    uint32_t word = 0;
    CHECK_EQ_INT(gt_tensor_ndim(scalar), 0);
    CHECK_OK(gt_tensor_read(scalar, &word, sizeof word));
    CHECK_EQ_INT(word, 0x0b0a0908);
    CHECK_OK(gt_safetensors_find(file, "empty", &index));
    gt_tensor *empty = CHECK_TENSOR(gt_safetensors_read(ctx, file, index));
    CHECK(gt_tensor_ndim(empty) == 2 && gt_tensor_size(empty, 0) == 0 && gt_tensor_size(empty, 1) == 3);
    CHECK_OK(gt_safetensors_find(file, "", &index));
    int32_t pair[2];
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_safetensors_read(ctx, file, index)), pair, sizeof pair));
    CHECK(pair[0] == 0x03020100 && pair[1] == 0x07060504);
    gt_safetensors_info info = io_info(file, "bool");
    CHECK(info.dtype == -1 && strcmp(info.dtype_name, "BOOL") == 0 && info.bytes == 4);
    CHECK_OK(gt_safetensors_find(file, "bool", &index));
    CHECK(gt_safetensors_read(ctx, file, index) == NULL);
    CHECK_EQ_INT(gt_last_error()->status, GT_NOT_SUPPORTED);
    CHECK_ERROR_HAS("tensor \"bool\" is BOOL");
    CHECK_OK(gt_scope_end(ctx));
    CHECK_STATUS(gt_safetensors_find(file, "no", &index), GT_NOT_FOUND);
    CHECK_STATUS(gt_safetensors_get_info(file, 4, &info), GT_BAD_ARGUMENT);
    gt_safetensors_close(file);
    free(path);

    /* NaN and infinity, bit by bit. */
    const uint32_t numbers[4] = {0x7fc00001, 0xff800000, 0x80000000, 1};
    static const char four[] = "{\"x\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}";
    unsigned char bytes[8 + sizeof four - 1 + 16] = {sizeof four - 1};
    memcpy(bytes + 8, four, sizeof four - 1);
    memcpy(bytes + 8 + sizeof four - 1, numbers, sizeof numbers);
    path = io_path(t, "nan.safetensors");
    io_write(path, bytes, sizeof bytes);
    file = io_open(path);
    uint32_t back[4];
    CHECK_OK(gt_scope_begin(ctx));
    CHECK_OK(gt_tensor_read(CHECK_TENSOR(gt_safetensors_read(ctx, file, 0)), back, sizeof back));
    CHECK_OK(gt_scope_end(ctx));
    CHECK(memcmp(back, numbers, sizeof back) == 0);
    gt_safetensors_close(file);
    free(path);
}

/* A file without tensors is one. */
TEST(contract, P2_an_empty_file_loads) {
    char *path = io_path(t, "none.safetensors");
    io_write_header(path, "{}", 0, 0);
    gt_safetensors *file;
    CHECK_OK(open_watched(path, 10, &file));
    CHECK_EQ_INT(gt_safetensors_count(file), 0);
    gt_safetensors_close(file);
    free(path);
}

/* Contract E1: each host allocation in turn fails. */
typedef struct whole_run {
    gt_context *ctx;
    gt_module *net;
    gt_optimizer *optimizer;
    gt_scaler *scaler;
    gt_trainer *trainer;
    gt_loader *loader;
    gt_state_parts parts;
} whole_run;

static whole_run run_make(test_case *t, double scale, int64_t batch) {
    whole_run r = {.ctx = test_context(t)};
    gt_optimizer_options adam;
    gt_scaler_options scaler;
    gt_trainer_options options;
    gt_dataset_format format;
    gt_dataset *dataset = NULL;
    static const float numbers[12];
    r.net = io_net(r.ctx);
    CHECK_OK(gt_optimizer_options_init(&adam, sizeof adam, GT_OPTIMIZER_ADAM));
    CHECK_OK(gt_optimizer_create_for(&adam, r.net, &r.optimizer));
    CHECK_OK(gt_scaler_options_init(&scaler, sizeof scaler));
    scaler.scale = scale;
    CHECK_OK(gt_scaler_create(r.ctx, &scaler, &r.scaler));
    CHECK_OK(gt_trainer_options_init(&options, sizeof options));
    options.optimizer = r.optimizer;
    options.scaler = r.scaler;
    CHECK_OK(gt_trainer_create(r.net, &options, &r.trainer));
    CHECK_OK(gt_dataset_format_init(&format, sizeof format));
    format.has_labels = 0;
    format.length = 12;
    CHECK_OK(gt_dataset_from_arrays(&format, numbers, NULL, 0, &dataset));
    CHECK_OK(gt_loader_create(r.ctx, dataset, NULL, &r.loader));
    gt_dataset_destroy(dataset);
    CHECK_OK(gt_loader_state_set(r.loader, 2, batch));
    CHECK_OK(gt_state_parts_init(&r.parts, sizeof r.parts));
    r.parts.trainer = r.trainer;
    r.parts.loader = r.loader;
    return r;
}

static void run_free(whole_run *r) {
    gt_loader_destroy(r->loader);
    gt_trainer_destroy(r->trainer);
    gt_scaler_destroy(r->scaler);
    gt_optimizer_destroy(r->optimizer);
    gt_module_destroy(r->net);
}

/* The run stands where `scale`, `batch` and the bits say. */
static void run_check(whole_run *r, double scale, int64_t batch, uint64_t seed, const unsigned char *bits, size_t size) {
    gt_scaler_state state;
    int64_t at = 0;
    uint64_t now = 0;
    CHECK_OK(gt_scaler_state_init(&state, sizeof state));
    CHECK_OK(gt_scaler_get_state(r->scaler, &state));
    CHECK_OK(gt_loader_state_get(r->loader, NULL, &at));
    CHECK_OK(gt_random_state_get(r->ctx, &now, NULL));
    CHECK(state.scale == scale && at == batch && now == seed);
    io_check_bits(r->net, bits, size);
}

TEST(contract, E1_saving_and_loading_survive_every_failing_allocation) {
    whole_run from = run_make(t, 1024, 7), to = run_make(t, 2048, 3);
    CHECK_OK(gt_random_seed(from.ctx, 11));
    CHECK_OK(gt_random_seed(to.ctx, 12));
    char *path = io_path(t, "state.safetensors");
    size_t size = 0, size_from = 0;
    unsigned char *bits = io_bits(to.net, &size), *bits_from = io_bits(from.net, &size_from);
    int faults = 0;
    for (int64_t at = 0;; ++at) { /* saving */
        host_memory_watch(at);
        gt_status status = gt_state_save(path, &from.parts);
        int failed = host_memory_failed();
        host_memory_watch(-1);
        if (!failed) break;
        CHECK(status == GT_OK || status == GT_OUT_OF_HOST_MEMORY);
        faults++;
    }
    CHECK_OK(gt_state_save(path, &from.parts));
    for (int64_t at = 0;; ++at) { /* loading: nothing changes until it works */
        host_memory_watch(at);
        gt_status status = gt_state_load(path, &to.parts);
        int failed = host_memory_failed();
        host_memory_watch(-1);
        if (!failed) break;
        CHECK_EQ_INT(status, GT_OUT_OF_HOST_MEMORY);
        run_check(&to, 2048, 3, 12, bits, size);
        faults++;
    }
    CHECK(faults > 80);
    run_check(&to, 1024, 7, 11, bits_from, size_from);
    free(bits);
    free(bits_from);
    free(path);
    run_free(&from);
    run_free(&to);
}
