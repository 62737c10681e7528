"""The zoo's networks: any shape, any number of classes, reproducible, and what they are called."""

import pytest
import torch

import relumine as rl
from relumine import explain, zoo

every_network = pytest.mark.parametrize("name", ["linear", "two_layer", "conv", "vgg11", "resnet18", "resnet18_small"])


def test_the_registry_names_the_papers_networks():
    assert [*zoo.NETWORKS] == ["linear", "two_layer", "conv", "vgg11", "resnet18", "resnet18_small"]


@every_network
@pytest.mark.parametrize(("shape", "classes"), [((1, 8, 8), 10), ((1, 28, 28), 3), ((3, 32, 32), 10), ((2, 5, 9), 1)])
def test_any_input_shape_and_number_of_classes(name, shape, classes):
    module = zoo.network(name, shape, classes).eval()
    answers = module(torch.rand(2, *shape))
    assert answers.shape == (2, classes)
    assert answers.dtype == torch.float32
    assert torch.isfinite(answers).all()


@pytest.mark.parametrize("name", ["linear", "two_layer"])
def test_dense_networks_take_flat_inputs(name):
    assert zoo.network(name, (7,), 2)(torch.rand(3, 7)).shape == (3, 2)


@every_network
def test_a_seed_decides_and_nothing_else_does(name):
    first = zoo.network(name, (1, 8, 8), 4, seed=3).state_dict()
    torch.manual_seed(123)
    state = torch.get_rng_state()
    again = zoo.network(name, (1, 8, 8), 4, seed=3).state_dict()
    other = zoo.network(name, (1, 8, 8), 4, seed=4).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("linear", 30730), ("vgg11", 9_228_362), ("resnet18", 11_173_962), ("resnet18_small", 11_173_962)],
)
def test_sizes_are_the_well_known_ones(name, parameters):
    module = zoo.network(name, (3, 32, 32), 10)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters


def test_options_change_widths():
    assert zoo.network("two_layer", (4,), 2, hidden=5)[1].weight.shape == (5, 4)
    conv = zoo.network("conv", (1, 8, 8), 2, channels=(3, 4), kernel=5, hidden=6)
    assert conv[0].weight.shape == (3, 1, 5, 5)
    assert conv[7].weight.shape == (6, 4 * 2 * 2)
    assert zoo.network("vgg11", (3, 8, 8), 2, width=4)[-1].weight.shape == (2, 4 * 8)
    assert zoo.network("resnet18_small", (3, 8, 8), 2, width=4)[-1].weight.shape == (2, 4 * 8)


@every_network
def test_in_eval_mode_an_input_is_answered_for_itself(name):
    module = zoo.network(name, (1, 8, 8), 4).eval()
    x = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(module(x)[:1], module(x[:1]), rtol=1e-4, atol=1e-5)


@every_network
def test_every_network_can_be_explained_and_matched(name):
    module = zoo.network(name, (1, 8, 8), 4).eval()
    explained = explain.Gradient().maps(module, torch.rand(2, 1, 8, 8), create_graph=True)
    (explained.maps.square().sum() + explained.values.square().sum()).backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("lenet", (1, 8, 8), 10), {}, "linear, two_layer, conv"),
        (("conv", (64,), 10), {}, r"\(channels, height, width\)"),
        (("linear", (0,), 10), {}, "positive"),
        (("two_layer", (4,), 2), {"width": 3}, "its options are: hidden"),
    ],
)
def test_misuse_says_what_was_expected(arguments, options, message):
    with pytest.raises(rl.MisuseError, match=message):
        zoo.network(*arguments, **options)
