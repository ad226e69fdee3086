"""Files of gtrain and of the Python package safetensors, read by each other. Usage: safetensors_check.py <safetensors_files> <folder>"""
import ctypes
import os
import struct
import subprocess
import sys

try:
    import numpy as np
    import safetensors
    import safetensors.numpy
except ImportError as error:
    print("SKIPPED:", error)
    sys.exit(0)

program, folder = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
VALUES = [3, 10, 17, 24, 31, 38]
FORMATS = {"F32": "f", "F16": "e", "F64": "d", "I32": "i", "I64": "q", "U8": "B"}


def as_bytes(dtype, values):
    if dtype == "BF16":  # the upper half of an f32; these values are exact
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)


def check(condition, *what):
    if not condition:
        sys.exit("FAILED: " + " ".join(map(str, what)))


def ours_read_by_the_package():
    path = os.path.join(folder, "ours.safetensors")
    subprocess.run([program, "write", path], check=True)
    with open(path, "rb") as file:
        found = dict(safetensors.deserialize(file.read()))
    dtypes = ["F32", "F16", "BF16", "F64", "I32", "I64", "U8"]
    for i, dtype in enumerate(dtypes):
        tensor = found.pop(f"t{i}")
        check(tensor["dtype"] == dtype and tensor["shape"] == [2, 3], i, tensor)
        check(bytes(tensor["data"]) == as_bytes(dtype, VALUES), dtype, bytes(tensor["data"]))
    tensor = found.pop("transposed")
    check(tensor["shape"] == [3, 2] and bytes(tensor["data"]) == as_bytes("F32", [3, 24, 10, 31, 17, 38]), tensor)
    tensor = found.pop("empty")
    check(tensor["shape"] == [0, 3] and tensor["dtype"] == "I64" and len(tensor["data"]) == 0, tensor)
    tensor = found.pop('scalar ä"')
    check(tensor["shape"] == [] and bytes(tensor["data"]) == as_bytes("F64", [3]), tensor)
    check(not found, found)
    with safetensors.safe_open(path, framework="np") as file:
        check(file.metadata() == {"format": "pt", "text": 'line\n"quoted" 😀'}, file.metadata())
        check(np.array_equal(file.get_tensor("t3"), np.array(VALUES, dtype=np.float64).reshape(2, 3)))


def printed(path):
    lines = subprocess.run([program, "print", path], check=True, capture_output=True).stdout.decode().splitlines()
    rows = [line.split("|") for line in lines]
    return {row[0]: row[1:] for row in rows if row[0] != "metadata"}, {row[1]: row[2] for row in rows if row[0] == "metadata"}


def the_packages_read_by_us():
    path = os.path.join(folder, "numpy.safetensors")
    kinds = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I32": np.int32, "I64": np.int64, "U8": np.uint8}
    arrays = {name.lower(): np.array(VALUES, dtype=kind).reshape(2, 3) for name, kind in kinds.items()}
    arrays["empty"] = np.zeros((0, 3), np.float32)
    arrays["scalar"] = np.array(3, np.float32)
    arrays["bool"] = np.array([True, False])
    arrays["nan ä"] = np.array([np.nan, np.inf, -0.0], np.float32)
    arrays["large"] = np.arange(100000, dtype=np.float32)
    safetensors.numpy.save_file(arrays, path, metadata={"key": "value 😀"})
    tensors, metadata = printed(path)
    check(metadata == {"key": "value 😀"}, metadata)
    check(set(tensors) == set(arrays), set(tensors))
    for name, array in arrays.items():
        dtype, shape, data = tensors[name]
        check(shape == ",".join(map(str, array.shape)), name, shape)
        check(data == ("" if dtype == "BOOL" else array.tobytes().hex()), name, dtype, data[:80])

    path = os.path.join(folder, "raw.safetensors")
    data = as_bytes("BF16", VALUES)
    if hasattr(safetensors, "TensorSpec"):
        buffer = ctypes.create_string_buffer(data, len(data))
        spec = safetensors.TensorSpec(dtype="bfloat16", shape=[2, 3], data_ptr=ctypes.addressof(buffer), data_len=len(data))
    else:  # what older versions take
        spec = {"dtype": "bfloat16", "shape": [2, 3], "data": data}
    blob = safetensors.serialize({"half": spec}, None)
    with open(path, "wb") as file:
        file.write(blob)
    tensors, _ = printed(path)
    check(tensors == {"half": ["BF16", "2,3", data.hex()]}, tensors)


def a_network_of_pytorchs_goes_through_ours():
    try:
        import safetensors.torch
        import torch
    except ImportError:
        return "without PyTorch"
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.25),
                        nn.Linear(80, 4))
    net(torch.randn(4, 1, 8, 8))  # so that the statistics are not those of the start
    here, there = os.path.join(folder, "torch.safetensors"), os.path.join(folder, "passed.safetensors")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        state = {name: t.to(dtype) if t.is_floating_point() else t for name, t in net.state_dict().items()}
        safetensors.torch.save_file(state, here)
        subprocess.run([program, "module", here, there], check=True)
        back = safetensors.torch.load_file(there)
        check(set(back) == set(state), set(back) ^ set(state))
        for name, t in state.items():
            expected = t.float() if t.is_floating_point() else t
            check(back[name].dtype == expected.dtype and torch.equal(back[name], expected), name)
    net.load_state_dict(back)
    return "with PyTorch " + torch.__version__


ours_read_by_the_package()
the_packages_read_by_us()
print("ok: both read each other's files, safetensors", safetensors.__version__, a_network_of_pytorchs_goes_through_ours())
