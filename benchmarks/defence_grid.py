"""The defences that are compared with each other: every kind in several strengths, or several variants."""

from dataclasses import dataclass

from relumine.oracle.base import Offer


@dataclass(frozen=True)
class Family:
    """One kind of defence.

    title: for a table
    level: at which it is measured, a name of ``LEVELS``
    words: the chains, from the weakest to the strongest where that can be said
    """

    title: str
    level: str
    words: tuple[str, ...]


def families(offer: Offer, deviation: float) -> tuple[Family, ...]:
    """The grid for a target: masks are shares of its inputs, SmoothGrad's noise is in units of the data's deviation."""
    some = [max(1, offer.dimension // part) for part in (2, 8, 32)]
    sigmas = [float(f"{deviation * factor:.2g}") for factor in (0.1, 1, 10)]
    of_gradients = {
        "nothing": ("",),
        "rounding": ("round:6", "round:4", "round:2"),
        "fresh noise": ("noise:0.01", "noise:0.1", "noise:1"),
        "consistent noise": ("noise:0.01,consistent", "noise:0.1,consistent", "noise:1,consistent"),
        "multiplicative noise": ("noise:0.01,multiplicative", "noise:0.1,multiplicative", "noise:1,multiplicative"),
        "noise on maps": ("noise:0.1,gradients", "noise:1,gradients", "noise:10,gradients"),
        "largest coordinates": tuple(f"topk:{count}" for count in some),
        "signs": ("sign", f"topk:{some[1]}+sign", "sign+top"),
        "magnitudes": ("magnitude", "magnitude+maxnorm", "magnitude+top"),
        "heat map": ("heatmap:8", "heatmap:4", "heatmap:2"),
        "scale removed": ("maxnorm", "heatmap:8,signed", "maxnorm+top"),
        "top class": ("top", "top+round:4", "top+round:2"),
        "labels with maps": ("label:kept", "label:kept+top", "label:kept+maxnorm"),
        "SmoothGrad": tuple(f"smoothgrad:10,{sigma:g}" for sigma in sigmas),
        "box of inputs": ("box:-10,10", "box:-1,2", "box:0,1"),
        "far inputs refused": ("near:10", "near:3", "near:1"),
        "query budget": ("budget:300", "budget:100", "budget:30"),
        "line detection": ("lines:30", "lines:10", "lines:3"),
        "PRADA": ("prada:0.8", "prada:0.9", "prada:0.95"),
    }
    of_probabilities = {
        "no explanation, probabilities": ("",),
        "rounded probabilities": ("round:4", "round:2", "round:1"),
        "noisy probabilities": ("noise:0.01", "noise:0.1", "noise:0.3"),
        "high confidence": ("high-confidence:0.1", "high-confidence:0.25", "high-confidence:0.5"),
        "reverse sigmoid": ("reverse-sigmoid:0.5,0.1", "reverse-sigmoid:1,0.1", "reverse-sigmoid:1,0.4"),
    }
    return (
        *(Family(title, "gradients", words) for title, words in of_gradients.items()),
        *(Family(title, "probabilities", words) for title, words in of_probabilities.items()),
        Family("no explanation, logits", "logits", ("", "round:4", "round:2")),
        Family("no explanation, label only", "label", ("",)),
    )
