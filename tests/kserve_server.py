"""A real KServe model server with a Captum explainer: ``python kserve_server.py PORT WEIGHTS DTYPE``.

WEIGHTS is an .npz file with A, b, W, c of a network with one hidden layer, or a TorchScript file (.pt). Nothing here
is relumine's: it is what an owner might run. ``:explain`` answers the gradient of every class (Saliency with
abs=False), with the predictions; the Open Inference Protocol, which has no such verb, gets both as output tensors.
"""

import sys

import numpy as np
import torch
from captum.attr import Saliency
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class Explained(Model):
    def __init__(self, weights: str, dtype: torch.dtype) -> None:
        super().__init__("net")
        self.dtype = dtype
        self.module = (torch.jit.load(weights).to(dtype) if weights.endswith(".pt") else dense(weights, dtype)).eval()
        self.saliency = Saliency(self.module)
        self.ready = True

    async def predict(self, payload, headers=None, response_headers=None):
        if isinstance(payload, InferRequest):
            (tensor,) = payload.inputs
            values, maps = self.explained(torch.tensor(tensor.as_numpy(), dtype=self.dtype))
            outputs = [output("predictions", values), output("explanations", maps)]
            return InferResponse(payload.id, self.name, outputs)
        with torch.no_grad():
            return {"predictions": self.module(self.inputs(payload)).numpy().tolist()}

    async def explain(self, payload, headers=None):
        values, maps = self.explained(self.inputs(payload))
        return {"predictions": values.tolist(), "explanations": maps.tolist()}

    def explained(self, x):
        with torch.no_grad():
            values = self.module(x).numpy()
        maps = [
            self.saliency.attribute(x.clone().requires_grad_(), target=k, abs=False).detach()
            for k in range(values.shape[1])
        ]
        return values, torch.stack(maps, dim=1).numpy()

    def inputs(self, payload):
        return torch.tensor(payload["instances"], dtype=self.dtype)


def dense(weights, dtype):
    with np.load(weights) as file:
        A, b, W, c = (torch.from_numpy(file[name]).to(dtype) for name in "AbWc")
    first, last = torch.nn.Linear(*A.shape[::-1], dtype=dtype), torch.nn.Linear(*W.shape[::-1], dtype=dtype)
    with torch.no_grad():
        for parameter, values in zip([*first.parameters(), *last.parameters()], [A, b, W, c], strict=True):
            parameter.copy_(values)
    return torch.nn.Sequential(first, torch.nn.ReLU(), last)


def output(name, numbers):
    tensor = InferOutput(name, list(numbers.shape), {"float32": "FP32", "float64": "FP64"}[str(numbers.dtype)])
    tensor.set_data_from_numpy(numbers, binary_data=False)
    return tensor


if __name__ == "__main__":
    port, weights, dtype = sys.argv[1:]
    torch.set_num_threads(1)
    ModelServer(http_port=int(port), workers=1, enable_grpc=False).start([Explained(weights, getattr(torch, dtype))])
