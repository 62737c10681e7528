"""The paper's networks and data."""

from relumine.zoo.data import Dataset as Dataset
from relumine.zoo.data import Examples as Examples
from relumine.zoo.data import Split as Split
from relumine.zoo.data import dataset as dataset
from relumine.zoo.data import gaussian_inputs as gaussian_inputs
from relumine.zoo.networks import NETWORKS as NETWORKS
from relumine.zoo.networks import network as network
from relumine.zoo.training import Card as Card
from relumine.zoo.training import Trained as Trained
from relumine.zoo.training import Training as Training
from relumine.zoo.training import trained as trained
