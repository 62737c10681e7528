"""The preflight: a few questions that tell what an endpoint's explanations are, and how gradients are got from them."""

from relumine.adapt.recipes import adapted as adapted
from relumine.probe.preflight import Findings as Findings
from relumine.probe.preflight import Probe as Probe
