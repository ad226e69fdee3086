"""Generated from include/gtrain by tools/generate_api.py; not for editing."""

# fmt: off
# ruff: noqa
from ctypes import CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

# --- constants
GT_VERSION_MAJOR = 0
GT_VERSION_MINOR = 1
GT_VERSION_PATCH = 0
GT_VERSION_NUMBER = 100
GT_MAX_DIMS = 8
GT_CHECKPOINT_MAX_OUTPUTS = 8
GT_WORKSPACE_AUTO = 18446744073709551615
GT_LOG_TEXT_MAX = 1024
GT_LOADER_DTYPE_KEEP = -1
GT_OOM_GROUPS = 8
GT_OOM_PINS = 4
GT_OOM_HOLDERS = 8
GT_OOM_REMEDIES = 12
GT_OOM_TEXT_SIZE = 2560
GT_STEP_MAX_INPUTS = 8
GT_STEP_MAX_OUTPUTS = 8
GT_OK = 0
GT_BAD_ARGUMENT = 1
GT_BAD_SHAPE = 2
GT_BAD_DTYPE = 3
GT_BAD_DEVICE = 4
GT_BAD_STATE = 5
GT_BAD_LABEL = 6
GT_BAD_BATCH = 7
GT_BAD_FILE = 8
GT_BAD_ABI = 9
GT_OUT_OF_MEMORY = 10
GT_OUT_OF_HOST_MEMORY = 11
GT_NOT_SUPPORTED = 12
GT_NO_DEVICE = 13
GT_LIBRARY = 14
GT_VERSION_MISMATCH = 15
GT_IO = 16
GT_NO_GRADS = 17
GT_SAVED_MODIFIED = 18
GT_TIMEOUT = 19
GT_WORKER = 20
GT_FORKED = 21
GT_STOPPED = 22
GT_NOT_DETERMINISTIC = 23
GT_CALLBACK = 24
GT_NOT_FOUND = 25
GT_INTERNAL = 26
GT_DEVICE_AUTO = 0
GT_DEVICE_CPU = 1
GT_DEVICE_CUDA = 2
GT_LOG_DEBUG = 0
GT_LOG_INFO = 1
GT_LOG_WARNING = 2
GT_LOG_ERROR = 3
GT_DTYPE_F32 = 0
GT_DTYPE_F16 = 1
GT_DTYPE_BF16 = 2
GT_DTYPE_F64 = 3
GT_DTYPE_I32 = 4
GT_DTYPE_I64 = 5
GT_DTYPE_U8 = 6
GT_DTYPE_COUNT = 7
GT_CAST_NONE = 0
GT_CAST_HALF = 1
GT_CAST_F32 = 2
GT_CAST_PROMOTE = 3
GT_SCALER_IDLE = 0
GT_SCALER_STEPPED = 1
GT_SCALER_SKIPPED = 2
GT_SCALER_STUCK_AT_FLOOR = 3
GT_ACTIVATION_NONE = 0
GT_ACTIVATION_RELU = 1
GT_REDUCTION_MEAN = 0
GT_REDUCTION_SUM = 1
GT_REDUCTION_NONE = 2
GT_NN_FAN_IN = 0
GT_NN_FAN_OUT = 1
GT_DOCTOR_READY = 0
GT_DOCTOR_CPU_ONLY = 1
GT_DOCTOR_BROKEN = 2
GT_DOCTOR_ERROR = 0
GT_DOCTOR_WARNING = 1
GT_DOCTOR_NOTE = 2
GT_DOCTOR_NO_GPU = 1
GT_DOCTOR_BUILT_WITHOUT_CUDA = 2
GT_DOCTOR_MODULE_BROKEN = 3
GT_DOCTOR_CONTAINER_WITHOUT_GPU = 4
GT_DOCTOR_NO_DRIVER = 5
GT_DOCTOR_DRIVER_NOT_LOADED = 6
GT_DOCTOR_DRIVER_TOO_OLD = 7
GT_DOCTOR_DRIVER_MISMATCH = 8
GT_DOCTOR_DRIVER_STUB = 9
GT_DOCTOR_DRIVER_FAILED = 10
GT_DOCTOR_NO_PERMISSION = 11
GT_DOCTOR_DEVICE_NODE_MISSING = 12
GT_DOCTOR_LIBRARY_MISSING = 13
GT_DOCTOR_LIBRARY_PATH = 14
GT_DOCTOR_LIBRARY_BROKEN = 15
GT_DOCTOR_LIBRARY_TOO_OLD = 16
GT_DOCTOR_LIBRARY_MIXED = 17
GT_DOCTOR_GPU_HIDDEN = 18
GT_DOCTOR_GPU_NOT_COMPILED_FOR = 19
GT_DOCTOR_GPU_FULL = 20
GT_DOCTOR_GPU_PROHIBITED = 21
GT_DOCTOR_GPU_LOST = 22
GT_DOCTOR_GPU_MEMORY_ERRORS = 23
GT_DOCTOR_GPU_THROTTLED = 24
GT_DOCTOR_CPU_SLOW = 25
GT_DOCTOR_CPU_LIMITED = 26
GT_DOCTOR_OMP_SETTING = 27
GT_MISMATCH_MISSING = 0
GT_MISMATCH_UNEXPECTED = 1
GT_MISMATCH_DIFFERENT = 2
GT_MEMORY_PARAMETER = 0
GT_MEMORY_GRADIENT = 1
GT_MEMORY_OPTIMIZER = 2
GT_MEMORY_ACTIVATION = 3
GT_MEMORY_TEMPORARY = 4
GT_MEMORY_WORKSPACE = 5
GT_MEMORY_INPUT = 6
GT_MEMORY_USER = 7
GT_MEMORY_CATEGORY_COUNT = 8
GT_OOM_NONE = 0
GT_OOM_TOO_LARGE = 1
GT_OOM_LIMIT = 2
GT_OOM_CAPACITY = 3
GT_OOM_FRAGMENTED = 4
GT_OOM_EXTERNAL = 5
GT_OOM_GROWTH = 6
GT_OOM_HOST = 7
GT_OOM_REMEDY_MICRO_BATCH = 0
GT_OOM_REMEDY_CHECKPOINT = 1
GT_OOM_REMEDY_HALF_PRECISION = 2
GT_OOM_REMEDY_OFFLOAD = 3
GT_OOM_REMEDY_WORKSPACE_LIMIT = 4
GT_OOM_REMEDY_RELEASE_GRAPHS = 5
GT_OOM_REMEDY_RELEASE_KEPT = 6
GT_OOM_REMEDY_OTHER_PROCESS = 7
GT_OOM_REMEDY_RAISE_LIMIT = 8
GT_OOM_REMEDY_KINDS = 9
GT_OPTIMIZER_SGD = 0
GT_OPTIMIZER_ADAM = 1
GT_OPTIMIZER_ADAMW = 2
GT_SCHEDULE_CONSTANT = 0
GT_SCHEDULE_STEP = 1
GT_SCHEDULE_COSINE = 2
GT_SCHEDULE_ONE_CYCLE = 3
GT_PROFILE_WAIT = 0
GT_PROFILE_WARMUP = 1
GT_PROFILE_ACTIVE = 2
GT_PROFILE_DONE = 3
GT_PROFILE_BY_ALL = 0
GT_PROFILE_BY_OP = 1
GT_PROFILE_BY_MODULE = 2
GT_PROFILE_BY_PHASE = 3
GT_WINDOW_NONE = 0
GT_WINDOW_UPDATED = 1
GT_WINDOW_SKIPPED = 2
GT_WINDOW_EMPTY = 3
GT_STEP_TEXT = 0
GT_STEP_GRAPHVIZ = 1
GT_LOSS_CROSS_ENTROPY = 0
GT_LOSS_MSE = 1
GT_LOSS_CUSTOM = 2
GT_PRECISION_F32 = 0
GT_PRECISION_F16 = 1
GT_PRECISION_BF16 = 2

# --- handles: addresses, as integers or None
gt_context_p = c_void_p
gt_tensor_p = c_void_p
gt_module_p = c_void_p
gt_optimizer_p = c_void_p
gt_loader_p = c_void_p
gt_dataset_p = c_void_p
gt_trainer_p = c_void_p
gt_scaler_p = c_void_p
gt_window_p = c_void_p
gt_log_queue_p = c_void_p
gt_transform_p = c_void_p
gt_doctor_report_p = c_void_p
gt_safetensors_p = c_void_p
gt_profile_p = c_void_p
gt_step_p = c_void_p

# --- numbers
gt_status = c_int32
gt_device_kind = c_int32
gt_log_level = c_int32
gt_dtype = c_int32
gt_cast_policy = c_int32
gt_scaler_status = c_int32
gt_activation = c_int32
gt_reduction = c_int32
gt_nn_fan = c_int32
gt_doctor_verdict = c_int32
gt_doctor_severity = c_int32
gt_doctor_fault_kind = c_int32
gt_mismatch = c_int32
gt_memory_category = c_int32
gt_oom_cause = c_int32
gt_oom_remedy_kind = c_int32
gt_optimizer_kind = c_int32
gt_schedule_kind = c_int32
gt_profile_phase = c_int32
gt_profile_group = c_int32
gt_window_status = c_int32
gt_step_format = c_int32
gt_loss_kind = c_int32
gt_precision = c_int32

# --- structs and callbacks


class gt_error(Structure):
    _fields_ = [
        ("status", gt_status),
        ("line", c_int32),
        ("native_code", c_int64),
        ("native_name", c_char_p),
        ("file", c_char_p),
        ("message", c_char_p),
        ("hint", c_char_p),
    ]


gt_log_fn = CFUNCTYPE(None, c_void_p, gt_log_level, c_char_p)


class gt_context_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("device", gt_device_kind),
        ("device_index", c_int32),
        ("cpu_threads", c_int32),
        ("memory_limit", c_uint64),
        ("workspace_limit", c_uint64),
        ("seed", c_uint64),
        ("deterministic", c_int32),
        ("allow_tf32", c_int32),
        ("log", gt_log_fn),
        ("log_user", c_void_p),
    ]


class gt_scaler_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dynamic", c_int32),
        ("scale", c_double),
        ("growth", c_double),
        ("backoff", c_double),
        ("floor", c_double),
        ("cap", c_double),
        ("growth_interval", c_int32),
        ("diagnose", c_int32),
    ]


class gt_scaler_state(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("status", gt_scaler_status),
        ("scale", c_double),
        ("growth_count", c_int64),
        ("updates", c_int64),
        ("skipped", c_int64),
        ("skipped_in_row", c_int64),
        ("parameter", c_char_p),
        ("op", c_char_p),
        ("module", c_char_p),
        ("op_backward", c_int32),
        ("padding", c_int32),
    ]


class gt_array(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("shape", POINTER(c_int64)),
        ("dtype", gt_dtype),
        ("ndim", c_int32),
    ]


class gt_custom_call(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_inputs", c_int32),
        ("n_outputs", c_int32),
        ("padding", c_int32),
        ("user", c_void_p),
        ("stream", c_void_p),
        ("inputs", POINTER(gt_array)),
        ("outputs", POINTER(gt_array)),
        ("output_grads", POINTER(gt_array)),
        ("input_grads", POINTER(gt_array)),
    ]


gt_custom_fn = CFUNCTYPE(gt_status, POINTER(gt_custom_call))
gt_custom_shape_fn = CFUNCTYPE(gt_status, POINTER(gt_custom_call), POINTER(c_int32), POINTER(c_int64), POINTER(gt_dtype))


class gt_custom_op_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_outputs", c_int32),
        ("name", c_char_p),
        ("user", c_void_p),
        ("shape", gt_custom_shape_fn),
        ("forward", gt_custom_fn),
        ("backward", gt_custom_fn),
        ("saves_inputs", c_int32),
        ("saves_outputs", c_int32),
    ]


class gt_conv2d_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("activation", gt_activation),
        ("stride", c_int64 * 2),
        ("padding", c_int64 * 2),
        ("dilation", c_int64 * 2),
        ("groups", c_int64),
    ]


class gt_pool2d_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("count_include_pad", c_int32),
        ("kernel", c_int64 * 2),
        ("stride", c_int64 * 2),
        ("padding", c_int64 * 2),
    ]


class gt_cross_entropy_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reduction", gt_reduction),
        ("ignore_label", c_int64),
        ("label_smoothing", c_double),
        ("class_weights", gt_tensor_p),
    ]


class gt_nn_linear_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("bias", c_int32),
    ]


class gt_nn_conv2d_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("bias", c_int32),
        ("kernel", c_int64 * 2),
        ("stride", c_int64 * 2),
        ("padding", c_int64 * 2),
        ("dilation", c_int64 * 2),
        ("groups", c_int64),
    ]


class gt_nn_batch_norm_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("affine", c_int32),
        ("track_running_stats", c_int32),
        ("padding", c_int32),
        ("epsilon", c_double),
        ("momentum", c_double),
    ]


class gt_nn_layer_norm_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("affine", c_int32),
        ("epsilon", c_double),
    ]


class gt_nn_residual_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("activation", gt_activation),
        ("body_name", c_char_p),
        ("shortcut_name", c_char_p),
    ]


gt_nn_forward_fn = CFUNCTYPE(gt_tensor_p, c_void_p, gt_module_p, POINTER(gt_tensor_p), c_int32)
gt_nn_destroy_fn = CFUNCTYPE(None, c_void_p)


class gt_nn_custom_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_inputs", c_int32),
        ("kind", c_char_p),
        ("user", c_void_p),
        ("forward", gt_nn_forward_fn),
        ("destroy", gt_nn_destroy_fn),
    ]


gt_checkpoint_fn = CFUNCTYPE(gt_status, c_void_p, POINTER(gt_tensor_p), POINTER(gt_tensor_p))


class gt_dataset_format(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("sample_dtype", gt_dtype),
        ("label_dtype", gt_dtype),
        ("has_labels", c_int32),
        ("sample_ndim", c_int32),
        ("label_ndim", c_int32),
        ("sample_shape", c_int64 * 8),
        ("label_shape", c_int64 * 8),
        ("length", c_int64),
        ("classes", c_int64),
    ]


class gt_dataset_callbacks(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("padding", c_uint32),
        ("user", c_void_p),
        ("fetch", CFUNCTYPE(gt_status, c_void_p, c_int64, c_int64, c_void_p, c_void_p)),
        ("interrupt", CFUNCTYPE(None, c_void_p)),
        ("destroy", CFUNCTYPE(None, c_void_p)),
    ]


class gt_loader_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("shuffle", c_int32),
        ("batch_size", c_int64),
        ("drop_last", c_int32),
        ("workers", c_int32),
        ("prefetch", c_int32),
        ("dtype", c_int32),
        ("seed", c_uint64),
        ("timeout", c_double),
        ("transform", gt_transform_p),
    ]


class gt_doctor_fault(Structure):
    _fields_ = [
        ("kind", gt_doctor_fault_kind),
        ("severity", gt_doctor_severity),
        ("what", c_char_p),
        ("remedy", c_char_p),
        ("command", c_char_p),
    ]


class gt_doctor_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("own_process", c_int32),
        ("module", c_char_p),
        ("library_path", c_char_p),
        ("root", c_char_p),
    ]


class gt_text_pair(Structure):
    _fields_ = [
        ("key", c_char_p),
        ("value", c_char_p),
    ]


class gt_safetensors_info(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", gt_dtype),
        ("name", c_char_p),
        ("dtype_name", c_char_p),
        ("data", c_void_p),
        ("bytes", c_uint64),
        ("shape", c_int64 * 8),
        ("ndim", c_int32),
        ("padding", c_int32),
    ]


gt_mismatch_fn = CFUNCTYPE(None, c_void_p, gt_mismatch, c_char_p, c_char_p)


class gt_module_load_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("strict", c_int32),
        ("on_mismatch", gt_mismatch_fn),
        ("user", c_void_p),
    ]


class gt_state_parts(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("n_optimizers", c_int32),
        ("module", gt_module_p),
        ("optimizers", POINTER(gt_optimizer_p)),
        ("scaler", gt_scaler_p),
        ("window", gt_window_p),
        ("trainer", gt_trainer_p),
        ("loader", gt_loader_p),
        ("metadata", POINTER(gt_text_pair)),
        ("n_metadata", c_int32),
        ("padding", c_int32),
        ("on_mismatch", gt_mismatch_fn),
        ("user", c_void_p),
    ]


class gt_memory_stats(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("padding", c_uint32),
        ("in_use", c_uint64),
        ("cached", c_uint64),
        ("reserved", c_uint64),
        ("peak_in_use", c_uint64),
        ("peak_reserved", c_uint64),
        ("allocations", c_uint64),
        ("device_allocations", c_uint64),
        ("category_in_use", c_uint64 * 8),
        ("category_at_peak", c_uint64 * 8),
        ("category_peak", c_uint64 * 8),
        ("limit", c_uint64),
        ("frees", c_uint64),
        ("retries", c_uint64),
        ("out_of_memory", c_uint64),
        ("segments", c_uint64),
        ("largest_free", c_uint64),
        ("steps", c_uint64),
        ("step_peak", c_uint64),
        ("last_step_peak", c_uint64),
        ("fragmentation", c_double),
    ]


class gt_oom_group(Structure):
    _fields_ = [
        ("op", c_char_p),
        ("module", c_char_p),
        ("bytes", c_uint64),
        ("largest", c_uint64),
        ("pinned", c_uint64),
        ("count", c_int64),
        ("shape", c_int64 * 8),
        ("ndim", c_int32),
        ("dtype", c_int32),
        ("category", gt_memory_category),
        ("padding", c_int32),
    ]


class gt_oom_holder(Structure):
    _fields_ = [
        ("process", c_int64),
        ("bytes", c_uint64),
    ]


class gt_oom_remedy(Structure):
    _fields_ = [
        ("kind", gt_oom_remedy_kind),
        ("enough", c_int32),
        ("bytes", c_uint64),
        ("need", c_uint64),
        ("micro_batch", c_int64),
        ("accumulation", c_int64),
        ("depth", c_int64),
        ("segments", c_int64),
        ("limit", c_uint64),
        ("process", c_int64),
        ("count", c_int64),
        ("target", c_char * 64),
        ("subject", c_char * 192),
        ("cost", c_char * 96),
    ]


class gt_oom_report(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("cause", gt_oom_cause),
        ("requested", c_uint64),
        ("rounded", c_uint64),
        ("op", c_char_p),
        ("module", c_char_p),
        ("phase", c_char_p),
        ("shape", c_int64 * 8),
        ("ndim", c_int32),
        ("dtype", c_int32),
        ("category", gt_memory_category),
        ("layers", c_int32),
        ("layers_run", c_int32),
        ("padding", c_int32),
        ("step", c_int64),
        ("device_total", c_uint64),
        ("device_free", c_uint64),
        ("ours", c_uint64),
        ("others", c_uint64),
        ("here", c_uint64),
        ("limit", c_uint64),
        ("in_use", c_uint64),
        ("cached", c_uint64),
        ("reserved", c_uint64),
        ("largest_free", c_uint64),
        ("largest_possible", c_uint64),
        ("peak_in_use", c_uint64),
        ("last_step_peak", c_uint64),
        ("category_in_use", c_uint64 * 8),
        ("category_peak", c_uint64 * 8),
        ("saved", c_uint64),
        ("graphs", c_int64),
        ("batch", c_int64),
        ("growth_op", c_char_p),
        ("growth_module", c_char_p),
        ("growth", c_uint64),
        ("growth_now", c_uint64),
        ("growth_category", gt_memory_category),
        ("growth_steps", c_int32),
        ("n_groups", c_int32),
        ("n_pins", c_int32),
        ("n_holders", c_int32),
        ("n_remedies", c_int32),
        ("groups", gt_oom_group * 8),
        ("pins", gt_oom_group * 4),
        ("holders", gt_oom_holder * 8),
        ("remedies", gt_oom_remedy * 12),
    ]


gt_memory_oom_fn = CFUNCTYPE(c_int32, c_void_p, gt_context_p, POINTER(gt_oom_report))


class gt_onnx_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("opset", c_int32),
        ("dynamic_batch", c_int32),
        ("n_metadata", c_int32),
        ("input_names", POINTER(c_char_p)),
        ("batched", POINTER(c_int32)),
        ("output_name", c_char_p),
        ("batch_name", c_char_p),
        ("metadata", POINTER(c_char_p)),
    ]


class gt_optimizer_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", gt_optimizer_kind),
        ("learning_rate", c_double),
        ("momentum", c_double),
        ("dampening", c_double),
        ("beta1", c_double),
        ("beta2", c_double),
        ("epsilon", c_double),
        ("weight_decay", c_double),
        ("nesterov", c_int32),
        ("padding", c_int32),
    ]


class gt_schedule(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", gt_schedule_kind),
        ("base", c_double),
        ("gamma", c_double),
        ("min_factor", c_double),
        ("pct_start", c_double),
        ("div_factor", c_double),
        ("final_div_factor", c_double),
        ("step_size", c_int64),
        ("total_steps", c_int64),
        ("warmup_steps", c_int64),
    ]


gt_profile_fn = CFUNCTYPE(None, c_void_p, gt_profile_p)


class gt_profile_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("skip_first", c_int32),
        ("wait", c_int32),
        ("warmup", c_int32),
        ("active", c_int32),
        ("repeat", c_int32),
        ("manual_steps", c_int32),
        ("whole_graphs", c_int32),
        ("nvtx", c_int32),
        ("max_events", c_int32),
        ("on_round", gt_profile_fn),
        ("user", c_void_p),
    ]


class gt_profile_summary(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("rounds", c_int32),
        ("steps", c_int64),
        ("calls", c_int64),
        ("wall_seconds", c_double),
        ("host_seconds", c_double),
        ("device_seconds", c_double),
        ("bytes", c_uint64),
        ("flops", c_uint64),
        ("untimed", c_int64),
        ("dropped_events", c_int64),
    ]


class gt_profile_entry(Structure):
    _fields_ = [
        ("op", c_char_p),
        ("module", c_char_p),
        ("phase", c_char_p),
        ("calls", c_int64),
        ("host_seconds", c_double),
        ("device_seconds", c_double),
        ("bytes", c_uint64),
        ("flops", c_uint64),
        ("bytes_per_second", c_double),
        ("flops_per_second", c_double),
        ("ceiling", c_double),
        ("dtype", gt_dtype),
        ("matrix", c_int32),
    ]


class gt_profile_ceilings(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("padding", c_int32),
        ("bytes_per_second", c_double),
        ("f32_flops_per_second", c_double),
        ("f16_flops_per_second", c_double),
    ]


class gt_window_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("micro_batches", c_int32),
        ("optimizers", POINTER(gt_optimizer_p)),
        ("module", gt_module_p),
        ("scaler", gt_scaler_p),
        ("schedule", POINTER(gt_schedule)),
        ("clip_norm", c_double),
        ("clip_value", c_double),
        ("n_optimizers", c_int32),
        ("padding", c_int32),
    ]


class gt_window_state(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("status", gt_window_status),
        ("updates", c_int64),
        ("skipped", c_int64),
        ("empty", c_int64),
        ("items", c_double),
        ("gradient_norm", c_double),
        ("learning_rate", c_double),
        ("micro_batches", c_int32),
        ("padding", c_int32),
    ]


class gt_step_result(Structure):
    _fields_ = [
        ("loss", gt_tensor_p),
        ("items", gt_tensor_p),
        ("outputs", gt_tensor_p * 8),
    ]


gt_step_fn = CFUNCTYPE(gt_status, c_void_p, POINTER(gt_tensor_p), c_int32, POINTER(gt_step_result))


class gt_step_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("micro_batches", c_int32),
        ("fn", gt_step_fn),
        ("user", c_void_p),
        ("module", gt_module_p),
        ("optimizers", POINTER(gt_optimizer_p)),
        ("scaler", gt_scaler_p),
        ("schedule", POINTER(gt_schedule)),
        ("clip_norm", c_double),
        ("clip_value", c_double),
        ("n_optimizers", c_int32),
        ("autocast", gt_dtype),
        ("memory_budget", c_uint64),
        ("offload", c_int32),
        ("fuse_elementwise", c_int32),
    ]


class gt_step_input(Structure):
    _fields_ = [
        ("shape", c_int64 * 8),
        ("ndim", c_int32),
        ("dtype", gt_dtype),
        ("channels_last", c_int32),
        ("padding", c_int32),
    ]


class gt_step_memory(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("workspace_known", c_int32),
        ("peak", c_uint64),
        ("fixed", c_uint64),
        ("inputs", c_uint64),
        ("arena", c_uint64),
        ("workspace", c_uint64),
        ("live", c_uint64),
        ("micro_batch", c_uint64),
        ("fixed_category", c_uint64 * 8),
        ("live_category", c_uint64 * 8),
        ("micro_batches", c_int32),
        ("instructions", c_int32),
        ("instruction", c_int32),
        ("padding", c_int32),
        ("op", c_char_p),
        ("module", c_char_p),
        ("phase", c_char_p),
    ]


class gt_metrics(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("padding", c_uint32),
        ("samples", c_int64),
        ("correct", c_int64),
        ("loss", c_double),
        ("accuracy", c_double),
    ]


class gt_train_progress(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("measured", c_int32),
        ("epoch", c_int64),
        ("epochs", c_int64),
        ("step", c_int64),
        ("steps", c_int64),
        ("total_steps", c_int64),
        ("learning_rate", c_double),
        ("samples_per_second", c_double),
        ("seconds", c_double),
        ("seconds_left", c_double),
        ("memory_in_use", c_uint64),
        ("memory_peak", c_uint64),
        ("training", gt_metrics),
        ("validation", gt_metrics),
        ("updates", c_int64),
        ("skipped", c_int64),
        ("loss_scale", c_double),
        ("micro_batch", c_int64),
        ("open_batches", c_int64),
    ]


gt_train_callback = CFUNCTYPE(c_int32, c_void_p, POINTER(gt_train_progress))
gt_loss_fn = CFUNCTYPE(gt_tensor_p, c_void_p, gt_tensor_p, gt_tensor_p)


class gt_trainer_options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("loss", gt_loss_kind),
        ("optimizer", gt_optimizer_p),
        ("schedule", POINTER(gt_schedule)),
        ("cross_entropy", POINTER(gt_cross_entropy_options)),
        ("loss_fn", gt_loss_fn),
        ("loss_user", c_void_p),
        ("on_step", gt_train_callback),
        ("on_epoch", gt_train_callback),
        ("callback_user", c_void_p),
        ("clip_norm", c_double),
        ("clip_value", c_double),
        ("log_every", c_int64),
        ("precision", gt_precision),
        ("accumulation", c_int32),
        ("checkpointing", c_int32),
        ("shrink_on_oom", c_int32),
        ("memory_budget", c_uint64),
        ("offload", c_uint64),
        ("scaler", gt_scaler_p),
        ("compile", c_int32),
        ("padding", c_int32),
    ]


class gt_fit_result(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("stopped", c_int32),
        ("epochs", c_int64),
        ("steps", c_int64),
        ("seconds", c_double),
        ("training_seconds", c_double),
        ("samples_per_second", c_double),
        ("training", gt_metrics),
        ("validation", gt_metrics),
    ]


# --- functions: result, arguments
FUNCTIONS = {
    "gt_abs": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_adaptive_avg_pool2d": (gt_tensor_p, [gt_tensor_p, c_int64, c_int64]),  # x, height, width
    "gt_add": (gt_tensor_p, [gt_tensor_p, gt_tensor_p]),  # a, b
    "gt_add_scalar": (gt_tensor_p, [gt_tensor_p, c_double]),  # x, value
    "gt_argmax": (gt_tensor_p, [gt_tensor_p, c_int32, c_int32]),  # x, axis, keep_dims
    "gt_autocast_begin": (gt_status, [gt_context_p, gt_dtype]),  # ctx, dtype
    "gt_autocast_disable": (gt_status, [gt_context_p]),  # ctx
    "gt_autocast_dtype": (gt_dtype, [gt_context_p]),  # ctx
    "gt_autocast_end": (gt_status, [gt_context_p]),  # ctx
    "gt_autocast_policy": (gt_cast_policy, [c_char_p]),  # op
    "gt_avg_pool2d": (gt_tensor_p, [gt_tensor_p, POINTER(gt_pool2d_options)]),  # x, options
    "gt_backward": (gt_status, [gt_tensor_p]),  # loss
    "gt_backward_from": (gt_status, [POINTER(gt_tensor_p), POINTER(gt_tensor_p), c_int32, c_int32]),  # tensors, gradients, count, retain_graph
    "gt_batch_norm": (gt_tensor_p, [gt_tensor_p, gt_tensor_p, gt_tensor_p, gt_tensor_p, gt_tensor_p, c_int32, c_double, c_double]),  # x, weight, bias, running_mean, running_var, training, momentum, epsilon
    "gt_batch_norm_activation": (gt_tensor_p, [gt_tensor_p, gt_tensor_p, gt_tensor_p, gt_tensor_p, gt_tensor_p, gt_tensor_p, c_int32, c_double, c_double, gt_activation]),  # x, weight, bias, running_mean, running_var, residual, training, momentum, epsilon, activation
    "gt_cast": (gt_tensor_p, [gt_tensor_p, gt_dtype]),  # x, dtype
    "gt_channels_last": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_checkpoint": (gt_status, [gt_context_p, gt_checkpoint_fn, c_void_p, POINTER(gt_tensor_p), c_int32, POINTER(gt_tensor_p), c_int32]),  # ctx, fn, user, inputs, n_inputs, outputs, n_outputs
    "gt_clear_error": (None, []),
    "gt_concat": (gt_tensor_p, [POINTER(gt_tensor_p), c_int32, c_int32]),  # tensors, count, axis
    "gt_context_create": (gt_status, [POINTER(gt_context_options), POINTER(gt_context_p)]),  # options, ctx
    "gt_context_destroy": (None, [gt_context_p]),  # ctx
    "gt_context_device": (gt_device_kind, [gt_context_p]),  # ctx
    "gt_context_device_name": (c_char_p, [gt_context_p]),  # ctx
    "gt_context_options_init": (gt_status, [POINTER(gt_context_options), c_size_t]),  # options, size
    "gt_context_set_memory_limit": (gt_status, [gt_context_p, c_uint64]),  # ctx, bytes
    "gt_context_set_workspace_limit": (gt_status, [gt_context_p, c_uint64]),  # ctx, bytes
    "gt_context_stream": (c_void_p, [gt_context_p]),  # ctx
    "gt_context_synchronize": (gt_status, [gt_context_p]),  # ctx
    "gt_contiguous": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_conv2d": (gt_tensor_p, [gt_tensor_p, gt_tensor_p, gt_tensor_p, POINTER(gt_conv2d_options)]),  # x, weight, bias, options
    "gt_conv2d_options_init": (gt_status, [POINTER(gt_conv2d_options), c_size_t]),  # options, size
    "gt_cross_entropy": (gt_tensor_p, [gt_tensor_p, gt_tensor_p, POINTER(gt_cross_entropy_options)]),  # logits, labels, options
    "gt_cross_entropy_options_init": (gt_status, [POINTER(gt_cross_entropy_options), c_size_t]),  # options, size
    "gt_cross_entropy_valid": (gt_tensor_p, [gt_tensor_p]),  # loss
    "gt_custom_op_call": (gt_status, [POINTER(gt_custom_op_options), POINTER(gt_tensor_p), c_int32, POINTER(gt_tensor_p)]),  # options, inputs, n_inputs, outputs
    "gt_custom_op_options_init": (gt_status, [POINTER(gt_custom_op_options), c_size_t]),  # options, size
    "gt_dataset_callbacks_init": (gt_status, [POINTER(gt_dataset_callbacks), c_size_t]),  # callbacks, size
    "gt_dataset_destroy": (None, [gt_dataset_p]),  # dataset
    "gt_dataset_format_init": (gt_status, [POINTER(gt_dataset_format), c_size_t]),  # format, size
    "gt_dataset_from_arrays": (gt_status, [POINTER(gt_dataset_format), c_void_p, c_void_p, c_int32, POINTER(gt_dataset_p)]),  # format, samples, labels, borrow, dataset
    "gt_dataset_from_callbacks": (gt_status, [POINTER(gt_dataset_format), POINTER(gt_dataset_callbacks), POINTER(gt_dataset_p)]),  # format, callbacks, dataset
    "gt_dataset_from_idx": (gt_status, [c_char_p, c_char_p, c_int64, POINTER(gt_dataset_p)]),  # images, labels, classes, dataset
    "gt_dataset_get_format": (gt_status, [gt_dataset_p, POINTER(gt_dataset_format)]),  # dataset, format
    "gt_dataset_length": (c_int64, [gt_dataset_p]),  # dataset
    "gt_dataset_slice": (gt_status, [gt_dataset_p, c_int64, c_int64, POINTER(gt_dataset_p)]),  # dataset, first, count, slice
    "gt_div": (gt_tensor_p, [gt_tensor_p, gt_tensor_p]),  # a, b
    "gt_doctor": (gt_status, [POINTER(gt_doctor_options), POINTER(gt_doctor_report_p)]),  # options, report
    "gt_doctor_fault_name": (c_char_p, [gt_doctor_fault_kind]),  # kind
    "gt_doctor_options_init": (gt_status, [POINTER(gt_doctor_options), c_size_t]),  # options, size
    "gt_doctor_report_destroy": (None, [gt_doctor_report_p]),  # report
    "gt_doctor_report_fault": (POINTER(gt_doctor_fault), [gt_doctor_report_p, c_int32]),  # report, index
    "gt_doctor_report_faults": (c_int32, [gt_doctor_report_p]),  # report
    "gt_doctor_report_json": (c_char_p, [gt_doctor_report_p]),  # report
    "gt_doctor_report_text": (c_char_p, [gt_doctor_report_p]),  # report
    "gt_doctor_report_verdict": (gt_doctor_verdict, [gt_doctor_report_p]),  # report
    "gt_dropout": (gt_tensor_p, [gt_tensor_p, c_double, c_int32]),  # x, probability, training
    "gt_dtype_name": (c_char_p, [gt_dtype]),  # dtype
    "gt_dtype_size": (c_size_t, [gt_dtype]),  # dtype
    "gt_embedding": (gt_tensor_p, [gt_tensor_p, gt_tensor_p]),  # weight, indices
    "gt_equal": (gt_tensor_p, [gt_tensor_p, gt_tensor_p]),  # a, b
    "gt_exp": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_expand": (gt_tensor_p, [gt_tensor_p, c_int32, POINTER(c_int64)]),  # x, ndim, shape
    "gt_fit_result_init": (gt_status, [POINTER(gt_fit_result), c_size_t]),  # result, size
    "gt_flatten": (gt_tensor_p, [gt_tensor_p, c_int32]),  # x, start_axis
    "gt_gelu": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_gelu_tanh": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_grad_enabled": (c_int32, [gt_context_p]),  # ctx
    "gt_last_error": (POINTER(gt_error), []),
    "gt_layer_norm": (gt_tensor_p, [gt_tensor_p, gt_tensor_p, gt_tensor_p, c_int32, c_double]),  # x, weight, bias, n_axes, epsilon
    "gt_linear": (gt_tensor_p, [gt_tensor_p, gt_tensor_p, gt_tensor_p]),  # x, weight, bias
    "gt_linear_activation": (gt_tensor_p, [gt_tensor_p, gt_tensor_p, gt_tensor_p, gt_activation]),  # x, weight, bias, activation
    "gt_loader_batch_size": (c_int64, [gt_loader_p]),  # loader
    "gt_loader_batches": (c_int64, [gt_loader_p]),  # loader
    "gt_loader_context": (gt_context_p, [gt_loader_p]),  # loader
    "gt_loader_create": (gt_status, [gt_context_p, gt_dataset_p, POINTER(gt_loader_options), POINTER(gt_loader_p)]),  # ctx, dataset, options, loader
    "gt_loader_destroy": (None, [gt_loader_p]),  # loader
    "gt_loader_host_bytes": (c_uint64, [gt_loader_p]),  # loader
    "gt_loader_next": (gt_status, [gt_loader_p, POINTER(gt_tensor_p), POINTER(gt_tensor_p), POINTER(c_int64)]),  # loader, x, y, count
    "gt_loader_options_init": (gt_status, [POINTER(gt_loader_options), c_size_t]),  # options, size
    "gt_loader_samples": (c_int64, [gt_loader_p]),  # loader
    "gt_loader_start_epoch": (gt_status, [gt_loader_p, c_int64]),  # loader, epoch
    "gt_loader_state_get": (gt_status, [gt_loader_p, POINTER(c_int64), POINTER(c_int64)]),  # loader, epoch, batch
    "gt_loader_state_set": (gt_status, [gt_loader_p, c_int64, c_int64]),  # loader, epoch, batch
    "gt_log": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_log_queue_count": (POINTER(c_int32), [gt_log_queue_p]),  # queue
    "gt_log_queue_create": (gt_status, [POINTER(gt_log_queue_p)]),  # queue
    "gt_log_queue_destroy": (None, [gt_log_queue_p]),  # queue
    "gt_log_queue_put": (None, [c_void_p, gt_log_level, c_char_p]),  # queue, level, text
    "gt_log_queue_take": (c_int32, [gt_log_queue_p, POINTER(gt_log_level), POINTER(c_char), c_size_t]),  # queue, level, text, size
    "gt_log_softmax": (gt_tensor_p, [gt_tensor_p, c_int32]),  # x, axis
    "gt_matmul": (gt_tensor_p, [gt_tensor_p, gt_tensor_p]),  # a, b
    "gt_max": (gt_tensor_p, [gt_tensor_p, POINTER(c_int32), c_int32, c_int32]),  # x, axes, n_axes, keep_dims
    "gt_max_pool2d": (gt_tensor_p, [gt_tensor_p, POINTER(gt_pool2d_options)]),  # x, options
    "gt_maximum": (gt_tensor_p, [gt_tensor_p, gt_tensor_p]),  # a, b
    "gt_mean": (gt_tensor_p, [gt_tensor_p, POINTER(c_int32), c_int32, c_int32]),  # x, axes, n_axes, keep_dims
    "gt_memory_category_name": (c_char_p, [gt_memory_category]),  # category
    "gt_memory_get_stats": (gt_status, [gt_context_p, POINTER(gt_memory_stats)]),  # ctx, stats
    "gt_memory_last_oom": (gt_status, [gt_context_p, POINTER(gt_oom_report)]),  # ctx, report
    "gt_memory_next_step": (gt_status, [gt_context_p]),  # ctx
    "gt_memory_report": (gt_status, [gt_context_p, POINTER(gt_oom_report)]),  # ctx, report
    "gt_memory_reset_peak": (gt_status, [gt_context_p]),  # ctx
    "gt_memory_set_history": (gt_status, [gt_context_p, c_int64]),  # ctx, events
    "gt_memory_set_oom_observer": (gt_status, [gt_context_p, gt_memory_oom_fn, c_void_p]),  # ctx, fn, user
    "gt_memory_snapshot": (gt_status, [gt_context_p, c_char_p]),  # ctx, path
    "gt_memory_stats_init": (gt_status, [POINTER(gt_memory_stats), c_size_t]),  # stats, size
    "gt_memory_timeline": (gt_status, [gt_context_p, c_char_p]),  # ctx, path
    "gt_memory_trim": (gt_status, [gt_context_p]),  # ctx
    "gt_memory_viz": (gt_status, [gt_context_p, c_char_p]),  # ctx, path
    "gt_metrics_init": (gt_status, [POINTER(gt_metrics), c_size_t]),  # metrics, size
    "gt_minimum": (gt_tensor_p, [gt_tensor_p, gt_tensor_p]),  # a, b
    "gt_module_add_buffer": (gt_status, [gt_module_p, c_char_p, gt_tensor_p, c_int32]),  # module, name, tensor, keep_f32
    "gt_module_add_child": (gt_status, [gt_module_p, c_char_p, gt_module_p]),  # module, name, child
    "gt_module_add_parameter": (gt_status, [gt_module_p, c_char_p, gt_tensor_p, c_int32]),  # module, name, tensor, keep_f32
    "gt_module_buffer": (gt_status, [gt_module_p, c_int32, POINTER(c_char_p), POINTER(gt_tensor_p)]),  # module, index, name, tensor
    "gt_module_buffer_count": (c_int32, [gt_module_p]),  # module
    "gt_module_check": (gt_status, [gt_module_p]),  # module
    "gt_module_checkpointing": (c_int32, [gt_module_p]),  # module
    "gt_module_child": (gt_status, [gt_module_p, c_int32, POINTER(c_char_p), POINTER(gt_module_p)]),  # module, index, name, child
    "gt_module_child_count": (c_int32, [gt_module_p]),  # module
    "gt_module_context": (gt_context_p, [gt_module_p]),  # module
    "gt_module_describe": (gt_status, [gt_module_p, POINTER(c_char), c_size_t, POINTER(c_size_t)]),  # module, buffer, size, needed
    "gt_module_destroy": (None, [gt_module_p]),  # module
    "gt_module_export_onnx": (gt_status, [gt_module_p, POINTER(gt_tensor_p), c_int32, POINTER(gt_onnx_options), c_char_p]),  # module, inputs, n_inputs, options, path
    "gt_module_find": (gt_status, [gt_module_p, c_char_p, POINTER(gt_tensor_p)]),  # module, name, tensor
    "gt_module_find_module": (gt_status, [gt_module_p, c_char_p, POINTER(gt_module_p)]),  # module, path, found
    "gt_module_forward": (gt_tensor_p, [gt_module_p, gt_tensor_p]),  # module, x
    "gt_module_forward_many": (gt_tensor_p, [gt_module_p, POINTER(gt_tensor_p), c_int32]),  # module, inputs, count
    "gt_module_kind": (c_char_p, [gt_module_p]),  # module
    "gt_module_load": (gt_status, [gt_module_p, c_char_p, POINTER(gt_module_load_options)]),  # module, path, options
    "gt_module_load_options_init": (gt_status, [POINTER(gt_module_load_options), c_size_t]),  # options, size
    "gt_module_parameter": (gt_status, [gt_module_p, c_int32, POINTER(c_char_p), POINTER(gt_tensor_p)]),  # module, index, name, tensor
    "gt_module_parameter_count": (c_int32, [gt_module_p]),  # module
    "gt_module_path": (c_char_p, [gt_module_p]),  # module
    "gt_module_replace_child": (gt_status, [gt_module_p, c_char_p, gt_module_p, POINTER(gt_module_p)]),  # module, name, child, removed
    "gt_module_save": (gt_status, [gt_module_p, c_char_p, POINTER(gt_text_pair), c_int32]),  # module, path, metadata, n_metadata
    "gt_module_set_checkpointing": (gt_status, [gt_module_p, c_int32]),  # module, on
    "gt_module_set_trainable": (gt_status, [gt_module_p, c_int32]),  # module, trainable
    "gt_module_set_training": (gt_status, [gt_module_p, c_int32]),  # module, training
    "gt_module_size": (gt_status, [gt_module_p, POINTER(c_int64), POINTER(c_uint64)]),  # module, elements, bytes
    "gt_module_to_dtype": (gt_status, [gt_module_p, gt_dtype]),  # module, dtype
    "gt_module_training": (c_int32, [gt_module_p]),  # module
    "gt_module_zero_grad": (gt_status, [gt_module_p]),  # module
    "gt_mse_loss": (gt_tensor_p, [gt_tensor_p, gt_tensor_p, gt_reduction]),  # x, target, reduction
    "gt_mul": (gt_tensor_p, [gt_tensor_p, gt_tensor_p]),  # a, b
    "gt_mul_scalar": (gt_tensor_p, [gt_tensor_p, c_double]),  # x, value
    "gt_neg": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_nn_adaptive_avg_pool2d": (gt_module_p, [gt_context_p, c_int64, c_int64]),  # ctx, height, width
    "gt_nn_avg_pool2d": (gt_module_p, [gt_context_p, c_int64, POINTER(gt_pool2d_options)]),  # ctx, kernel, options
    "gt_nn_batch_norm": (gt_module_p, [gt_context_p, c_int64, POINTER(gt_nn_batch_norm_options)]),  # ctx, features, options
    "gt_nn_batch_norm_options_init": (gt_status, [POINTER(gt_nn_batch_norm_options), c_size_t]),  # options, size
    "gt_nn_conv2d": (gt_module_p, [gt_context_p, c_int64, c_int64, c_int64, POINTER(gt_nn_conv2d_options)]),  # ctx, in_channels, out_channels, kernel, options
    "gt_nn_conv2d_options_init": (gt_status, [POINTER(gt_nn_conv2d_options), c_size_t]),  # options, size
    "gt_nn_custom": (gt_module_p, [gt_context_p, POINTER(gt_nn_custom_options)]),  # ctx, options
    "gt_nn_custom_options_init": (gt_status, [POINTER(gt_nn_custom_options), c_size_t]),  # options, size
    "gt_nn_dropout": (gt_module_p, [gt_context_p, c_double]),  # ctx, probability
    "gt_nn_embedding": (gt_module_p, [gt_context_p, c_int64, c_int64]),  # ctx, rows, width
    "gt_nn_flatten": (gt_module_p, [gt_context_p, c_int32]),  # ctx, start_axis
    "gt_nn_gelu": (gt_module_p, [gt_context_p, c_int32]),  # ctx, tanh_approximation
    "gt_nn_identity": (gt_module_p, [gt_context_p]),  # ctx
    "gt_nn_init_constant": (gt_status, [gt_tensor_p, c_double]),  # tensor, value
    "gt_nn_init_kaiming_normal": (gt_status, [gt_tensor_p, c_double, gt_nn_fan]),  # tensor, negative_slope, fan
    "gt_nn_init_kaiming_uniform": (gt_status, [gt_tensor_p, c_double, gt_nn_fan]),  # tensor, negative_slope, fan
    "gt_nn_init_normal": (gt_status, [gt_tensor_p, c_double, c_double]),  # tensor, mean, deviation
    "gt_nn_init_uniform": (gt_status, [gt_tensor_p, c_double, c_double]),  # tensor, low, high
    "gt_nn_init_xavier_normal": (gt_status, [gt_tensor_p, c_double]),  # tensor, gain
    "gt_nn_init_xavier_uniform": (gt_status, [gt_tensor_p, c_double]),  # tensor, gain
    "gt_nn_layer_norm": (gt_module_p, [gt_context_p, c_int32, POINTER(c_int64), POINTER(gt_nn_layer_norm_options)]),  # ctx, n_axes, shape, options
    "gt_nn_layer_norm_options_init": (gt_status, [POINTER(gt_nn_layer_norm_options), c_size_t]),  # options, size
    "gt_nn_linear": (gt_module_p, [gt_context_p, c_int64, c_int64, POINTER(gt_nn_linear_options)]),  # ctx, in_features, out_features, options
    "gt_nn_linear_options_init": (gt_status, [POINTER(gt_nn_linear_options), c_size_t]),  # options, size
    "gt_nn_max_pool2d": (gt_module_p, [gt_context_p, c_int64, POINTER(gt_pool2d_options)]),  # ctx, kernel, options
    "gt_nn_relu": (gt_module_p, [gt_context_p]),  # ctx
    "gt_nn_residual": (gt_module_p, [gt_module_p, gt_module_p, POINTER(gt_nn_residual_options)]),  # body, shortcut, options
    "gt_nn_residual_options_init": (gt_status, [POINTER(gt_nn_residual_options), c_size_t]),  # options, size
    "gt_nn_resnet18": (gt_module_p, [gt_context_p, c_int64]),  # ctx, classes
    "gt_nn_resnet50": (gt_module_p, [gt_context_p, c_int64]),  # ctx, classes
    "gt_nn_resnet_basic_block": (gt_module_p, [gt_context_p, c_int64, c_int64, c_int64]),  # ctx, in_channels, channels, stride
    "gt_nn_resnet_bottleneck": (gt_module_p, [gt_context_p, c_int64, c_int64, c_int64]),  # ctx, in_channels, width, stride
    "gt_nn_sequential": (gt_module_p, [gt_context_p]),  # ctx
    "gt_nn_sequential_add": (gt_status, [gt_module_p, gt_module_p]),  # sequential, child
    "gt_nn_sequential_add_named": (gt_status, [gt_module_p, c_char_p, gt_module_p]),  # sequential, name, child
    "gt_nn_sequential_from": (gt_module_p, [gt_context_p, POINTER(gt_module_p), c_int32]),  # ctx, children, count
    "gt_nn_sequential_set_segments": (gt_status, [gt_module_p, c_int32]),  # sequential, segments
    "gt_nn_sigmoid": (gt_module_p, [gt_context_p]),  # ctx
    "gt_nn_silu": (gt_module_p, [gt_context_p]),  # ctx
    "gt_nn_tanh": (gt_module_p, [gt_context_p]),  # ctx
    "gt_no_grad_begin": (gt_status, [gt_context_p]),  # ctx
    "gt_no_grad_end": (gt_status, [gt_context_p]),  # ctx
    "gt_offload_begin": (gt_status, [gt_context_p, c_uint64]),  # ctx, min_bytes
    "gt_offload_end": (gt_status, [gt_context_p]),  # ctx
    "gt_onnx_options_init": (gt_status, [POINTER(gt_onnx_options), c_size_t]),  # options, size
    "gt_oom_cause_name": (c_char_p, [gt_oom_cause]),  # cause
    "gt_oom_remedy_name": (c_char_p, [gt_oom_remedy_kind]),  # kind
    "gt_oom_report_init": (gt_status, [POINTER(gt_oom_report), c_size_t]),  # report, size
    "gt_oom_report_json": (gt_status, [POINTER(gt_oom_report), POINTER(c_char), c_size_t, POINTER(c_size_t)]),  # report, buffer, size, needed
    "gt_oom_report_text": (gt_status, [POINTER(gt_oom_report), POINTER(c_char), c_size_t, POINTER(c_size_t)]),  # report, buffer, size, needed
    "gt_optimizer_clip_grad_norm": (gt_status, [gt_optimizer_p, c_double, POINTER(gt_tensor_p)]),  # optimizer, max_norm, norm
    "gt_optimizer_clip_grad_value": (gt_status, [gt_optimizer_p, c_double]),  # optimizer, max_value
    "gt_optimizer_create": (gt_status, [POINTER(gt_optimizer_options), POINTER(gt_tensor_p), c_int32, POINTER(gt_optimizer_p)]),  # options, parameters, count, optimizer
    "gt_optimizer_create_for": (gt_status, [POINTER(gt_optimizer_options), gt_module_p, POINTER(gt_optimizer_p)]),  # options, module, optimizer
    "gt_optimizer_destroy": (None, [gt_optimizer_p]),  # optimizer
    "gt_optimizer_learning_rate": (c_double, [gt_optimizer_p]),  # optimizer
    "gt_optimizer_options_init": (gt_status, [POINTER(gt_optimizer_options), c_size_t, gt_optimizer_kind]),  # options, size, kind
    "gt_optimizer_parameter": (gt_status, [gt_optimizer_p, c_int32, POINTER(gt_tensor_p)]),  # optimizer, index, parameter
    "gt_optimizer_parameter_count": (c_int32, [gt_optimizer_p]),  # optimizer
    "gt_optimizer_set_learning_rate": (gt_status, [gt_optimizer_p, c_double]),  # optimizer, learning_rate
    "gt_optimizer_state_get": (gt_status, [gt_optimizer_p, c_int32, c_char_p, POINTER(gt_tensor_p)]),  # optimizer, index, name, state
    "gt_optimizer_state_set": (gt_status, [gt_optimizer_p, c_int32, c_char_p, gt_tensor_p]),  # optimizer, index, name, source
    "gt_optimizer_step": (gt_status, [gt_optimizer_p]),  # optimizer
    "gt_optimizer_steps_get": (gt_status, [gt_optimizer_p, POINTER(c_int64)]),  # optimizer, steps
    "gt_optimizer_steps_set": (gt_status, [gt_optimizer_p, POINTER(c_int64)]),  # optimizer, steps
    "gt_optimizer_zero_grad": (gt_status, [gt_optimizer_p]),  # optimizer
    "gt_pad": (gt_tensor_p, [gt_tensor_p, POINTER(c_int64), POINTER(c_int64), c_double]),  # x, before, after, value
    "gt_permute": (gt_tensor_p, [gt_tensor_p, POINTER(c_int32)]),  # x, axes
    "gt_pool2d_options_init": (gt_status, [POINTER(gt_pool2d_options), c_size_t]),  # options, size
    "gt_pow_scalar": (gt_tensor_p, [gt_tensor_p, c_double]),  # x, value
    "gt_profile_ceilings_init": (gt_status, [POINTER(gt_profile_ceilings), c_size_t]),  # ceilings, size
    "gt_profile_create": (gt_status, [gt_context_p, POINTER(gt_profile_options), POINTER(gt_profile_p)]),  # ctx, options, profile
    "gt_profile_destroy": (None, [gt_profile_p]),  # profile
    "gt_profile_entry_count": (c_int32, [gt_profile_p]),  # profile
    "gt_profile_get_ceilings": (gt_status, [gt_context_p, POINTER(gt_profile_ceilings)]),  # ctx, ceilings
    "gt_profile_get_entry": (POINTER(gt_profile_entry), [gt_profile_p, c_int32]),  # profile, index
    "gt_profile_get_phase": (gt_profile_phase, [gt_profile_p]),  # profile
    "gt_profile_get_summary": (gt_status, [gt_profile_p, POINTER(gt_profile_summary)]),  # profile, summary
    "gt_profile_json": (gt_status, [gt_profile_p, c_char_p]),  # profile, path
    "gt_profile_options_init": (gt_status, [POINTER(gt_profile_options), c_size_t]),  # options, size
    "gt_profile_step": (gt_status, [gt_profile_p]),  # profile
    "gt_profile_stop": (gt_status, [gt_profile_p]),  # profile
    "gt_profile_summary_init": (gt_status, [POINTER(gt_profile_summary), c_size_t]),  # summary, size
    "gt_profile_text": (gt_status, [gt_profile_p, gt_profile_group, c_int32, POINTER(c_char), c_size_t, POINTER(c_size_t)]),  # profile, group, rows, buffer, size, needed
    "gt_profile_trace": (gt_status, [gt_profile_p, c_char_p]),  # profile, path
    "gt_random_seed": (gt_status, [gt_context_p, c_uint64]),  # ctx, seed
    "gt_random_state_get": (gt_status, [gt_context_p, POINTER(c_uint64), POINTER(c_uint64)]),  # ctx, seed, offset
    "gt_random_state_set": (gt_status, [gt_context_p, c_uint64, c_uint64]),  # ctx, seed, offset
    "gt_relu": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_reshape": (gt_tensor_p, [gt_tensor_p, c_int32, POINTER(c_int64)]),  # x, ndim, shape
    "gt_safetensors_close": (None, [gt_safetensors_p]),  # file
    "gt_safetensors_count": (c_int64, [gt_safetensors_p]),  # file
    "gt_safetensors_find": (gt_status, [gt_safetensors_p, c_char_p, POINTER(c_int64)]),  # file, name, index
    "gt_safetensors_get_info": (gt_status, [gt_safetensors_p, c_int64, POINTER(gt_safetensors_info)]),  # file, index, info
    "gt_safetensors_info_init": (gt_status, [POINTER(gt_safetensors_info), c_size_t]),  # info, size
    "gt_safetensors_metadata": (gt_status, [gt_safetensors_p, c_int64, POINTER(gt_text_pair)]),  # file, index, pair
    "gt_safetensors_metadata_count": (c_int64, [gt_safetensors_p]),  # file
    "gt_safetensors_metadata_find": (gt_status, [gt_safetensors_p, c_char_p, POINTER(c_char_p)]),  # file, key, value
    "gt_safetensors_open": (gt_status, [c_char_p, POINTER(gt_safetensors_p)]),  # path, file
    "gt_safetensors_read": (gt_tensor_p, [gt_context_p, gt_safetensors_p, c_int64]),  # ctx, file, index
    "gt_safetensors_save": (gt_status, [c_char_p, POINTER(c_char_p), POINTER(gt_tensor_p), c_int32, POINTER(gt_text_pair), c_int32]),  # path, names, tensors, count, metadata, n_metadata
    "gt_scaler_create": (gt_status, [gt_context_p, POINTER(gt_scaler_options), POINTER(gt_scaler_p)]),  # ctx, options, scaler
    "gt_scaler_destroy": (None, [gt_scaler_p]),  # scaler
    "gt_scaler_get_state": (gt_status, [gt_scaler_p, POINTER(gt_scaler_state)]),  # scaler, state
    "gt_scaler_options_init": (gt_status, [POINTER(gt_scaler_options), c_size_t]),  # options, size
    "gt_scaler_scale": (gt_tensor_p, [gt_scaler_p, gt_tensor_p]),  # scaler, loss
    "gt_scaler_set_state": (gt_status, [gt_scaler_p, POINTER(gt_scaler_state)]),  # scaler, state
    "gt_scaler_state_init": (gt_status, [POINTER(gt_scaler_state), c_size_t]),  # state, size
    "gt_scaler_step": (gt_status, [gt_scaler_p, gt_optimizer_p]),  # scaler, optimizer
    "gt_scaler_unscale": (gt_status, [gt_scaler_p, gt_optimizer_p]),  # scaler, optimizer
    "gt_scaler_update": (gt_status, [gt_scaler_p]),  # scaler
    "gt_schedule_init": (gt_status, [POINTER(gt_schedule), c_size_t, gt_schedule_kind]),  # schedule, size, kind
    "gt_schedule_rate": (gt_status, [POINTER(gt_schedule), c_int64, POINTER(c_double)]),  # schedule, step, rate
    "gt_scope_begin": (gt_status, [gt_context_p]),  # ctx
    "gt_scope_end": (gt_status, [gt_context_p]),  # ctx
    "gt_scope_return": (gt_tensor_p, [gt_context_p, gt_tensor_p]),  # ctx, result
    "gt_sigmoid": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_silu": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_slice": (gt_tensor_p, [gt_tensor_p, c_int32, c_int64, c_int64, c_int64]),  # x, axis, start, stop, step
    "gt_softmax": (gt_tensor_p, [gt_tensor_p, c_int32]),  # x, axis
    "gt_sqrt": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_square": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_state_keep_last": (gt_status, [c_char_p, c_int32]),  # prefix, keep
    "gt_state_latest": (gt_status, [c_char_p, POINTER(c_char), c_size_t, POINTER(c_size_t), POINTER(c_int64)]),  # prefix, path, size, needed, number
    "gt_state_load": (gt_status, [c_char_p, POINTER(gt_state_parts)]),  # path, parts
    "gt_state_parts_init": (gt_status, [POINTER(gt_state_parts), c_size_t]),  # parts, size
    "gt_state_path": (gt_status, [c_char_p, c_int64, POINTER(c_char), c_size_t, POINTER(c_size_t)]),  # prefix, number, path, size, needed
    "gt_state_save": (gt_status, [c_char_p, POINTER(gt_state_parts)]),  # path, parts
    "gt_status_name": (c_char_p, [gt_status]),  # status
    "gt_status_text": (c_char_p, [gt_status]),  # status
    "gt_step_budget_text": (gt_status, [gt_step_p, POINTER(c_char), c_size_t, POINTER(c_size_t)]),  # step, buffer, size, needed
    "gt_step_create": (gt_status, [gt_context_p, POINTER(gt_step_options), POINTER(gt_step_p)]),  # ctx, options, step
    "gt_step_describe": (gt_status, [gt_step_p, gt_step_format, POINTER(c_char), c_size_t, POINTER(c_size_t)]),  # step, format, buffer, size, needed
    "gt_step_destroy": (None, [gt_step_p]),  # step
    "gt_step_get_memory": (gt_status, [gt_step_p, POINTER(gt_step_memory)]),  # step, memory
    "gt_step_get_state": (gt_status, [gt_step_p, POINTER(gt_window_state)]),  # step, state
    "gt_step_largest_batch": (gt_status, [gt_step_p, POINTER(gt_step_input), c_int32, c_int32, c_uint64, POINTER(c_int64), POINTER(gt_step_memory)]),  # step, inputs, n_inputs, micro_batches, budget, rows, memory
    "gt_step_loss": (gt_tensor_p, [gt_step_p]),  # step
    "gt_step_memory_init": (gt_status, [POINTER(gt_step_memory), c_size_t]),  # memory, size
    "gt_step_options_init": (gt_status, [POINTER(gt_step_options), c_size_t]),  # options, size
    "gt_step_output": (gt_tensor_p, [gt_step_p, c_int32]),  # step, index
    "gt_step_plan": (gt_status, [gt_step_p, POINTER(gt_step_input), c_int32, c_int32, POINTER(gt_step_memory)]),  # step, inputs, n_inputs, micro_batches, memory
    "gt_step_reset": (gt_status, [gt_step_p]),  # step
    "gt_step_run": (gt_status, [gt_step_p, POINTER(gt_tensor_p), c_int32]),  # step, inputs, n_inputs
    "gt_sub": (gt_tensor_p, [gt_tensor_p, gt_tensor_p]),  # a, b
    "gt_sum": (gt_tensor_p, [gt_tensor_p, POINTER(c_int32), c_int32, c_int32]),  # x, axes, n_axes, keep_dims
    "gt_tanh": (gt_tensor_p, [gt_tensor_p]),  # x
    "gt_tensor_arange": (gt_tensor_p, [gt_context_p, gt_dtype, c_double, c_double, c_int64]),  # ctx, dtype, start, step, count
    "gt_tensor_bytes": (c_size_t, [gt_tensor_p]),  # tensor
    "gt_tensor_context": (gt_context_p, [gt_tensor_p]),  # tensor
    "gt_tensor_copy": (gt_status, [gt_tensor_p, gt_tensor_p]),  # destination, source
    "gt_tensor_data": (c_void_p, [gt_tensor_p]),  # tensor
    "gt_tensor_detach": (gt_tensor_p, [gt_tensor_p]),  # tensor
    "gt_tensor_drop": (None, [gt_tensor_p]),  # tensor
    "gt_tensor_dtype": (gt_dtype, [gt_tensor_p]),  # tensor
    "gt_tensor_empty": (gt_tensor_p, [gt_context_p, gt_dtype, c_int32, POINTER(c_int64)]),  # ctx, dtype, ndim, shape
    "gt_tensor_fill": (gt_status, [gt_tensor_p, c_double]),  # tensor, value
    "gt_tensor_from_data": (gt_tensor_p, [gt_context_p, gt_dtype, c_int32, POINTER(c_int64), c_void_p, c_size_t]),  # ctx, dtype, ndim, shape, data, bytes
    "gt_tensor_from_memory": (gt_tensor_p, [gt_context_p, gt_dtype, c_int32, POINTER(c_int64), POINTER(c_int64), c_void_p, CFUNCTYPE(None, c_void_p), c_void_p]),  # ctx, dtype, ndim, shape, strides, data, release, user
    "gt_tensor_full": (gt_tensor_p, [gt_context_p, gt_dtype, c_int32, POINTER(c_int64), c_double]),  # ctx, dtype, ndim, shape, value
    "gt_tensor_grad": (gt_tensor_p, [gt_tensor_p]),  # tensor
    "gt_tensor_is_contiguous": (c_int32, [gt_tensor_p]),  # tensor
    "gt_tensor_item": (gt_status, [gt_tensor_p, POINTER(c_double)]),  # tensor, value
    "gt_tensor_name": (c_char_p, [gt_tensor_p]),  # tensor
    "gt_tensor_ndim": (c_int32, [gt_tensor_p]),  # tensor
    "gt_tensor_normal": (gt_tensor_p, [gt_context_p, gt_dtype, c_int32, POINTER(c_int64), c_double, c_double]),  # ctx, dtype, ndim, shape, mean, std
    "gt_tensor_numel": (c_int64, [gt_tensor_p]),  # tensor
    "gt_tensor_read": (gt_status, [gt_tensor_p, c_void_p, c_size_t]),  # tensor, data, bytes
    "gt_tensor_release": (None, [gt_tensor_p]),  # tensor
    "gt_tensor_requires_grad": (c_int32, [gt_tensor_p]),  # tensor
    "gt_tensor_retain": (gt_tensor_p, [gt_tensor_p]),  # tensor
    "gt_tensor_set_name": (gt_status, [gt_tensor_p, c_char_p]),  # tensor, name
    "gt_tensor_set_requires_grad": (gt_status, [gt_tensor_p, c_int32]),  # tensor, requires_grad
    "gt_tensor_shape": (POINTER(c_int64), [gt_tensor_p]),  # tensor
    "gt_tensor_size": (c_int64, [gt_tensor_p, c_int32]),  # tensor, axis
    "gt_tensor_strides": (POINTER(c_int64), [gt_tensor_p]),  # tensor
    "gt_tensor_uniform": (gt_tensor_p, [gt_context_p, gt_dtype, c_int32, POINTER(c_int64), c_double, c_double]),  # ctx, dtype, ndim, shape, low, high
    "gt_tensor_write": (gt_status, [gt_tensor_p, c_void_p, c_size_t]),  # tensor, data, bytes
    "gt_tensor_zero_grad": (gt_status, [gt_tensor_p]),  # tensor
    "gt_tensor_zeros": (gt_tensor_p, [gt_context_p, gt_dtype, c_int32, POINTER(c_int64)]),  # ctx, dtype, ndim, shape
    "gt_trainer_create": (gt_status, [gt_module_p, POINTER(gt_trainer_options), POINTER(gt_trainer_p)]),  # module, options, trainer
    "gt_trainer_destroy": (None, [gt_trainer_p]),  # trainer
    "gt_trainer_evaluate": (gt_status, [gt_trainer_p, gt_loader_p, POINTER(gt_metrics)]),  # trainer, loader, metrics
    "gt_trainer_fit": (gt_status, [gt_trainer_p, gt_loader_p, gt_loader_p, c_int64, POINTER(gt_fit_result)]),  # trainer, training, validation, epochs, result
    "gt_trainer_options_init": (gt_status, [POINTER(gt_trainer_options), c_size_t]),  # options, size
    "gt_trainer_scaler": (gt_scaler_p, [gt_trainer_p]),  # trainer
    "gt_trainer_state_get": (gt_status, [gt_trainer_p, POINTER(c_int64), POINTER(c_int64)]),  # trainer, epoch, total_steps
    "gt_trainer_state_set": (gt_status, [gt_trainer_p, c_int64, c_int64]),  # trainer, epoch, total_steps
    "gt_transform_create": (gt_status, [POINTER(gt_transform_p)]),  # transform
    "gt_transform_destroy": (None, [gt_transform_p]),  # transform
    "gt_transform_horizontal_flip": (gt_status, [gt_transform_p, c_double]),  # transform, probability
    "gt_transform_normalize": (gt_status, [gt_transform_p, POINTER(c_double), POINTER(c_double), c_int32]),  # transform, mean, std, channels
    "gt_transform_random_crop": (gt_status, [gt_transform_p, c_int64, c_int64, c_int64]),  # transform, height, width, padding
    "gt_transform_to_float": (gt_status, [gt_transform_p, c_double]),  # transform, scale
    "gt_transpose": (gt_tensor_p, [gt_tensor_p, c_int32, c_int32]),  # x, axis0, axis1
    "gt_version_number": (c_int32, []),
    "gt_version_string": (c_char_p, []),
    "gt_window_cancel": (gt_status, [gt_window_p]),  # window
    "gt_window_create": (gt_status, [POINTER(gt_window_options), POINTER(gt_window_p)]),  # options, window
    "gt_window_destroy": (None, [gt_window_p]),  # window
    "gt_window_flush": (gt_status, [gt_window_p]),  # window
    "gt_window_get_state": (gt_status, [gt_window_p, POINTER(gt_window_state)]),  # window, state
    "gt_window_micro_begin": (gt_status, [gt_window_p]),  # window
    "gt_window_micro_end": (gt_status, [gt_window_p, gt_tensor_p, c_double, gt_tensor_p]),  # window, loss, items, items_on_device
    "gt_window_options_init": (gt_status, [POINTER(gt_window_options), c_size_t]),  # options, size
    "gt_window_set_micro_batches": (gt_status, [gt_window_p, c_int32]),  # window, micro_batches
    "gt_window_set_updates": (gt_status, [gt_window_p, c_int64]),  # window, updates
    "gt_window_state_init": (gt_status, [POINTER(gt_window_state), c_size_t]),  # state, size
}

STRUCTS = {
    "gt_error": gt_error,
    "gt_context_options": gt_context_options,
    "gt_scaler_options": gt_scaler_options,
    "gt_scaler_state": gt_scaler_state,
    "gt_array": gt_array,
    "gt_custom_call": gt_custom_call,
    "gt_custom_op_options": gt_custom_op_options,
    "gt_conv2d_options": gt_conv2d_options,
    "gt_pool2d_options": gt_pool2d_options,
    "gt_cross_entropy_options": gt_cross_entropy_options,
    "gt_nn_linear_options": gt_nn_linear_options,
    "gt_nn_conv2d_options": gt_nn_conv2d_options,
    "gt_nn_batch_norm_options": gt_nn_batch_norm_options,
    "gt_nn_layer_norm_options": gt_nn_layer_norm_options,
    "gt_nn_residual_options": gt_nn_residual_options,
    "gt_nn_custom_options": gt_nn_custom_options,
    "gt_dataset_format": gt_dataset_format,
    "gt_dataset_callbacks": gt_dataset_callbacks,
    "gt_loader_options": gt_loader_options,
    "gt_doctor_fault": gt_doctor_fault,
    "gt_doctor_options": gt_doctor_options,
    "gt_text_pair": gt_text_pair,
    "gt_safetensors_info": gt_safetensors_info,
    "gt_module_load_options": gt_module_load_options,
    "gt_state_parts": gt_state_parts,
    "gt_memory_stats": gt_memory_stats,
    "gt_oom_group": gt_oom_group,
    "gt_oom_holder": gt_oom_holder,
    "gt_oom_remedy": gt_oom_remedy,
    "gt_oom_report": gt_oom_report,
    "gt_onnx_options": gt_onnx_options,
    "gt_optimizer_options": gt_optimizer_options,
    "gt_schedule": gt_schedule,
    "gt_profile_options": gt_profile_options,
    "gt_profile_summary": gt_profile_summary,
    "gt_profile_entry": gt_profile_entry,
    "gt_profile_ceilings": gt_profile_ceilings,
    "gt_window_options": gt_window_options,
    "gt_window_state": gt_window_state,
    "gt_step_result": gt_step_result,
    "gt_step_options": gt_step_options,
    "gt_step_input": gt_step_input,
    "gt_step_memory": gt_step_memory,
    "gt_metrics": gt_metrics,
    "gt_train_progress": gt_train_progress,
    "gt_trainer_options": gt_trainer_options,
    "gt_fit_result": gt_fit_result,
}
