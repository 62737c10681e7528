"""Defences: oracles in front of an oracle that show less of it, each saying what it changes."""

from relumine.defend.base import Defended as Defended
from relumine.defend.base import changes_of as changes_of
from relumine.defend.maps import HeatMap as HeatMap
from relumine.defend.maps import MagnitudeOnly as MagnitudeOnly
from relumine.defend.maps import MaxNormalised as MaxNormalised
from relumine.defend.maps import SignOnly as SignOnly
from relumine.defend.maps import TopClass as TopClass
from relumine.defend.maps import TopFeatures as TopFeatures
from relumine.defend.noise import GaussianNoise as GaussianNoise
from relumine.defend.noise import Rounded as Rounded
from relumine.defend.noise import SmoothGradDefence as SmoothGradDefence
from relumine.defend.refuse import Budget as Budget
from relumine.defend.refuse import FarInputs as FarInputs
from relumine.defend.refuse import InputBox as InputBox
from relumine.defend.refuse import Refusing as Refusing
from relumine.defend.registry import DEFENCES as DEFENCES
from relumine.defend.registry import Chain as Chain
from relumine.defend.registry import Kind as Kind
from relumine.defend.registry import parse as parse
from relumine.defend.values import HighConfidence as HighConfidence
from relumine.defend.values import LabelOnly as LabelOnly
from relumine.defend.values import ReverseSigmoid as ReverseSigmoid
from relumine.defend.watch import DistanceWatch as DistanceWatch
from relumine.defend.watch import LineWatch as LineWatch
