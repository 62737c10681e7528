"""Inputs, maps and weights as small PNG pictures inside the page."""

import base64
import io
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[np.float64]

# Blue and orange are told apart by all kinds of colour vision. How strong a coordinate is, is how opaque it is drawn:
# nothing is the page's own background, so that one picture serves the light and the dark page.
NEGATIVE = (37, 120, 200)
POSITIVE = (222, 98, 10)


def input_picture(values: Sequence[float], shape: Sequence[int]) -> str:
    """A grey or RGB picture of an input, from its smallest to its largest value."""
    grid = _grid(values, shape)
    channels = grid if len(grid) == 3 else np.repeat(grid.mean(axis=0, keepdims=True), 3, axis=0)
    seen = np.all(np.isfinite(channels), axis=0)
    low, high = (channels[:, seen].min(), channels[:, seen].max()) if seen.any() else (0.0, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):  # a range as wide as all numbers
        scaled = np.where(seen, (channels - low) / (high - low or 1.0), 0)
    return _png(np.concatenate([scaled, seen[None].astype(float)]))


def map_picture(values: Sequence[float], shape: Sequence[int]) -> str:
    """A picture of signed numbers, scaled by the largest magnitude: blue below zero, orange above, nothing at zero."""
    channels = np.nan_to_num(_grid(values, shape), nan=0.0, posinf=0.0, neginf=0.0)
    strongest = np.abs(channels).argmax(axis=0)
    signed = np.take_along_axis(channels, strongest[None], axis=0)[0]
    strength = np.abs(signed) / (np.abs(signed).max() or 1.0)
    colours = np.where(signed < 0, *(np.array(colour)[:, None, None] / 255 for colour in (NEGATIVE, POSITIVE)))
    return _png(np.concatenate([colours, strength[None]]))


def likeness(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The cosine between two maps; None where one of them is nothing."""
    a, b = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    a, b = (part / (np.abs(part).max(initial=0.0) or 1.0) for part in (a, b))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else None


def _grid(values: Sequence[float], shape: Sequence[int]) -> Array:
    """Channels × rows × columns; a plain vector becomes a square, or lines as long as a square's would be."""
    flat = np.asarray(values, dtype=float).ravel()
    sides = [side for side in shape if side != 1]
    if math.prod(shape) != len(flat) or len(sides) < 2:
        width = max(1, math.isqrt(max(0, len(flat) - 1)) + 1) if len(flat) > 12 else max(1, len(flat))
        padded = np.full(math.ceil(max(1, len(flat)) / width) * width, np.nan)
        padded[: len(flat)] = flat
        return padded.reshape(1, -1, width)
    return flat.reshape(-1, *sides[-2:])


def _png(planes: Array) -> str:
    """A data URI of red, green, blue and opacity, each from 0 to 1."""
    pixels = np.clip(np.rint(np.nan_to_num(planes) * 255), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
