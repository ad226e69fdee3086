"""Runs what onnx_models wrote: onnx.checker, types against the operators' schemas, and ONNX Runtime's outputs beside gtrain's.

    onnx_check.py PROGRAM FOLDER [FILTER]

Prints SKIPPED and the reason where the packages onnx, onnxruntime and numpy are not there.
"""

import os
import shutil
import subprocess
import sys

try:
    import ml_dtypes
    import numpy as np
    import onnx
    import onnxruntime
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64, "i32": np.int32, "i64": np.int64, "u8": np.uint8}


def read_manifest(folder):
    with open(os.path.join(folder, "manifest.txt"), encoding="utf-8") as file:
        for block in file.read().split("\n\n"):
            lines = [line.split() for line in block.splitlines()]
            if not lines:
                continue
            name, relative, absolute, run = lines[0]
            tensors = {"input": {}, "output": {}}
            for kind, tensor, dtype, path, *sizes in lines[1:]:
                data = np.fromfile(os.path.join(folder, path), DTYPES[dtype]).reshape([int(size) for size in sizes])
                tensors[kind][tensor] = data
            yield name, float(relative), float(absolute), int(run), tensors["input"], tensors["output"]["output"]


def type_name(number):
    return "tensor(%s)" % onnx.helper.tensor_dtype_to_np_dtype(number).name.replace("float32", "float").replace("float64", "double")


def check_types(model):
    """Each input of each node has a type that its operator takes, alike where the schema says so."""
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    for value in list(inferred.graph.value_info) + list(model.graph.input) + list(inferred.graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    opset = model.opset_import[0].version
    for node in model.graph.node:
        schema = onnx.defs.get_schema(node.op_type, opset)
        constraints = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
        bound = {}
        for i, name in enumerate(node.input):
            formal = schema.inputs[min(i, len(schema.inputs) - 1)]
            actual = type_name(types[name]).replace("float16", "float16")
            allowed = constraints.get(formal.type_str, {formal.type_str})
            assert actual in allowed, f"{node.name}: input {i} is {actual}, not one of {sorted(allowed)}"
            if formal.type_str in constraints:
                assert bound.setdefault(formal.type_str, actual) == actual, f"{node.name}: input {i} is {actual}"


def check(folder, name, relative, absolute, run, inputs, expected):
    path = os.path.join(folder, name + ".onnx")
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    check_types(model)
    assert {entry.key: entry.value for entry in model.metadata_props}["network"] == name.rsplit("_", 3 if name.endswith("_fixed") else 2)[0]
    if not run:
        return 0.0
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {value.name for value in session.get_inputs()}
    (got,) = session.run(None, {key: value for key, value in inputs.items() if key in given})
    assert got.dtype == expected.dtype and got.shape == expected.shape, f"{got.dtype} {got.shape}, not {expected.dtype} {expected.shape}"
    a, b = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=relative, atol=absolute)
    return float(np.max(np.abs(a - b), initial=0.0))


def main():
    program, folder = sys.argv[1:3]
    wanted = sys.argv[3] if len(sys.argv) > 3 else ""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    subprocess.run([program, folder], check=True)
    failures = count = 0
    for name, *case in read_manifest(folder):
        if wanted not in name:
            continue
        count += 1
        try:
            difference = check(folder, name, *case)
            print(f"{name}: largest difference {difference:.3g}")
        except Exception as error:  # each model's outcome is reported
            failures += 1
            print(f"{name}: FAILED: {error}")
    shutil.rmtree(folder)
    print(f"{count - failures} of {count} models agree")
    return 1 if failures or count == 0 else 0


sys.exit(main())
