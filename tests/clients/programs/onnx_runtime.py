# SPDX-License-Identifier: MIT OR Apache-2.0
"""ONNX Runtime: convolution and matrix product, plain and by a CUDA graph. The model is made
here."""

import client
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper


def model():
    random = np.random.default_rng(5)

    def constant(name, *shape):
        data = random.normal(0, 0.1, shape).astype(np.float32)
        return helper.make_tensor(name, TensorProto.FLOAT, shape, data.tobytes(), raw=True)

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Reshape", ["p", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "m"], ["y"]),
    ]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [2, 8])
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 27])],
        # Both are of one size: their order of upload differs from run to run (hash tables with a
        # random seed).
        [constant("w", 8, 3, 3, 3), shape, constant("m", 8, 27)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 10
    onnx.checker.check_model(made)
    return made.SerializeToString()


def body():
    content = model()
    x = np.ones((2, 3, 16, 16), np.float32)
    for graph in ("0", "1"):
        # The search by timing would pick other kernels from run to run; the default algorithm
        # does not.
        options = {"cudnn_conv_algo_search": "DEFAULT", "enable_cuda_graph": graph}
        session = ort.InferenceSession(content, providers=[("CUDAExecutionProvider", options)])
        assert session.get_providers()[0] == "CUDAExecutionProvider", session.get_providers()
        if graph == "0":
            for _ in range(10):
                (y,) = session.run(None, {"x": x})
            assert y.shape == (2, 27)
            client.kept("plain", y)
        else:
            binding = session.io_binding()
            there = ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0)
            back = ort.OrtValue.ortvalue_from_shape_and_type([2, 27], np.float32, "cuda", 0)
            binding.bind_ortvalue_input("x", there)
            binding.bind_ortvalue_output("y", back)
            for _ in range(10):
                session.run_with_iobinding(binding)
            client.kept("graph", back)
            assert back.numpy().shape == (2, 27)


client.main(body)
