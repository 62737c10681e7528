"""Captum's methods behind an oracle: what an endpoint would answer, whatever its explainer."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import captum.attr as captum
import numpy as np
import torch
from torch import nn

import relumine as rl


def _noisy(kind: str, **options: object) -> Callable[[nn.Module], Callable[..., torch.Tensor]]:
    def make(module: nn.Module) -> Callable[..., torch.Tensor]:
        tunnel = captum.NoiseTunnel(captum.Saliency(module))
        return lambda x, target: tunnel.attribute(x, target=target, nt_type=kind, nt_samples=5, stdevs=0.2, **options)

    return make


def _plain(method: type, **options: object) -> Callable[[nn.Module], Callable[..., torch.Tensor]]:
    def make(module: nn.Module) -> Callable[..., torch.Tensor]:
        explainer = method(module)
        return lambda x, target: explainer.attribute(x, target=target, **options)

    return make


def _gradient_shap(module: nn.Module) -> Callable[..., torch.Tensor]:
    explainer = captum.GradientShap(module)
    return lambda x, target: explainer.attribute(x, torch.zeros_like(x[:1]), target=target)


def _occlusion(module: nn.Module) -> Callable[..., torch.Tensor]:
    explainer = captum.Occlusion(module)
    return lambda x, target: explainer.attribute(x, (1,), target=target)


def _one_by_one(method: type) -> Callable[[nn.Module], Callable[..., torch.Tensor]]:
    """KernelShap and Lime explain one input at a time."""

    def make(module: nn.Module) -> Callable[..., torch.Tensor]:
        explainer = method(module)
        return lambda x, target: torch.cat([explainer.attribute(row[None], target=target) for row in x])

    return make


def _normalised(absolute: bool) -> Callable[[nn.Module], Callable[..., torch.Tensor]]:
    def make(module: nn.Module) -> Callable[..., torch.Tensor]:
        explainer = captum.Saliency(module)

        def explain(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            maps = explainer.attribute(x, target=target, abs=absolute)
            return maps / maps.abs().amax(dim=1, keepdim=True).clamp_min(1e-30)

        return explain

    return make


def _grad_cam(module: nn.Module) -> Callable[..., torch.Tensor]:
    layer = next(part for part in module if isinstance(part, nn.Conv2d))
    explainer = captum.LayerGradCam(module, layer)

    def explain(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        coarse = explainer.attribute(x, target=target)
        side = round(x.shape[1] ** 0.5)
        return captum.LayerAttribution.interpolate(coarse, (side, side)).flatten(1)

    return explain


# Every method of captum's that takes a plain network, as it comes, and normalised maps besides.
METHODS: dict[str, Callable[[nn.Module], Callable[..., torch.Tensor]]] = {
    "Saliency": _plain(captum.Saliency),
    "Saliency(abs=False)": _plain(captum.Saliency, abs=False),
    "InputXGradient": _plain(captum.InputXGradient),
    "IntegratedGradients": _plain(captum.IntegratedGradients),
    "DeepLift": _plain(captum.DeepLift),
    "GradientShap": _gradient_shap,
    "LRP": _plain(captum.LRP),
    "SmoothGrad": _noisy("smoothgrad", abs=False),
    "SmoothGrad of |gradient|": _noisy("smoothgrad"),
    "SmoothGrad squared": _noisy("smoothgrad_sq", abs=False),
    "VarGrad": _noisy("vargrad", abs=False),
    "GuidedBackprop": _plain(captum.GuidedBackprop),
    "Deconvolution": _plain(captum.Deconvolution),
    "Occlusion": _occlusion,
    "FeatureAblation": _plain(captum.FeatureAblation),
    "KernelShap": _one_by_one(captum.KernelShap),
    "Lime": _one_by_one(captum.Lime),
    "max-normalised gradient": _normalised(False),
    "max-normalised |gradient|": _normalised(True),
}

# Needs a convolution.
METHODS_OF_IMAGES = {"GradCAM": _grad_cam}


@dataclass(frozen=True)
class Shown:
    """How an endpoint answers: which method explains, what values are, which outputs are explained, how it rounds."""

    method: str
    values: str = "logits"
    classes: str | int = "all"
    decimals: int | None = None


def explained(module: nn.Module, shown: Shown, offer: rl.Offer | None = None) -> rl.FunctionOracle:
    """The module behind an endpoint, which offers what an owner would write down without looking."""
    last = [nn.Softmax(dim=1)] if shown.values == "probabilities" else []
    answering = nn.Sequential(*module, *last)
    dtype = next(module.parameters()).dtype
    explain = (METHODS | METHODS_OF_IMAGES)[shown.method](answering)
    d = inputs_of(module)

    def query(x: np.ndarray, gradients: bool) -> tuple[np.ndarray, np.ndarray | None]:
        rows = torch.tensor(x, dtype=dtype)
        with torch.no_grad():
            values = answering(rows)
        if not gradients:
            return _rounded(values, shown.decimals), None
        K = values.shape[1]
        chosen = range(K) if shown.classes == "all" else [shown.classes]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            maps = [
                explain(rows.clone().requires_grad_(), target=values.argmax(1) if k == "top" else k).detach()
                for k in chosen
            ]
        return _rounded(values, shown.decimals), _rounded(torch.stack(maps, 1), shown.decimals)

    usual = rl.Offer(
        (d,),
        module[-1].out_features,
        values=shown.values,
        gradients="all" if shown.classes == "all" else "top",
        dtype=str(dtype).removeprefix("torch."),
    )
    return rl.FunctionOracle(query, offer or usual)


def inputs_of(module: nn.Sequential) -> int:
    """Numbers in one input: images are square, of one channel."""
    first = module[0]
    return int(np.prod(first.unflattened_size)) if isinstance(first, nn.Unflatten) else first.in_features


def _rounded(tensor: torch.Tensor, decimals: int | None) -> np.ndarray:
    numbers = tensor.numpy().astype(np.float64)
    return numbers if decimals is None else np.round(numbers, decimals)


def random_network(d: int, h: int, K: int, *, bias: bool, seed: int, dtype: torch.dtype) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(d, h, bias=bias), nn.ReLU(), nn.Linear(h, K, bias=bias))
        if bias:
            nn.init.normal_(module[0].bias, std=0.5)
    return module.to(dtype).eval()


def image_network(side: int, K: int, *, seed: int, dtype: torch.dtype) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            nn.Conv2d(1, 4, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * ((side - 1) // 2) ** 2, K),
        )
    return module.to(dtype).eval()


def right(findings: rl.Findings, shown: Shown, *, bias: bool, dtype: str) -> bool:
    """Whether a preflight told all it should: kind and recipe, values, precision, rounding, classes."""
    kinds, recipe = expected(shown, bias=bias)
    if shown.values == "probabilities" and shown.method.startswith("SmoothGrad") and findings.recipe is not None:
        kinds, recipe = expected(replace(shown, values="logits"), bias=bias)  # where far out is not flat yet
    offer = findings.offer
    known = offer.gradients in ("none", shown.classes) or recipe is None
    rounded = findings.decimals == shown.decimals
    precise = offer.dtype == dtype or shown.decimals is not None
    return (
        findings.kind in kinds
        and findings.recipe == recipe
        and offer.values == shown.values
        and all((known, rounded, precise))
    )


def expected(shown: Shown, *, bias: bool) -> tuple[set[str], str | None]:
    """What a preflight must say: the kinds that are right, and the recipe (None: that there is none).

    Without biases and behind no softmax, a network of one hidden layer is linear between 0 and the input, so that
    methods which average gradients on that way give input × gradient exactly.
    """
    straight = not bias and shown.values == "logits"
    times = ({"input × gradient"}, "input-times-gradient")
    mixed = times if straight else ({"path attribution"}, None)
    smooth = shown.values == "logits"  # far out, a softmax is flat
    lost = ({"random map", "sampled attribution"}, None)
    return {
        "Saliency": ({"|gradient|"}, "absolute"),
        "Saliency(abs=False)": ({"gradient"}, "gradient"),
        "InputXGradient": times,
        "IntegratedGradients": mixed,
        # captum's rule for a softmax leaves sums that are a quarter off.
        "DeepLift": mixed if smooth else ({"path attribution", "other map"}, None),
        "GradientShap": times if straight else ({"sampled attribution", "random map"}, None),
        "LRP": times,
        "SmoothGrad": ({"smoothed gradient"}, "smoothed") if smooth else lost,
        "SmoothGrad of |gradient|": ({"smoothed |gradient|"}, "smoothed-absolute") if smooth else lost,
        "SmoothGrad squared": ({"smoothed gradient²"}, "smoothed-squared") if smooth else lost,
        "VarGrad": ({"variance of gradients"} if smooth else {*lost[0], "variance of gradients"}, None),
        "GuidedBackprop": ({"other map"}, None),
        "Deconvolution": ({"other map"}, None),
        "Occlusion": ({"ablation"}, None),
        "FeatureAblation": ({"ablation"}, None),
        "KernelShap": ({"sampled attribution", "random map"}, None),
        "GradCAM": ({"other map"}, None),
        "Lime": ({"random map", "sampled attribution", "other map", "all zero"}, None),
        "max-normalised gradient": ({"gradient, scale lost"}, "normalised"),
        "max-normalised |gradient|": ({"|gradient|, scale lost"}, "normalised-absolute"),
    }[shown.method]
