"""Deep: several hidden ReLU layers from gradients (docs/deep.md).

    duals.py: a layer's rows and activation patterns from Jacobians ──> ascent.py: layer after layer, at points
        where all units below are on (all_on.py) ──> top.py: the last hidden layer by its tensor ──> verified

Where that ends (one output, more units than inputs, few outputs and more than two hidden layers, units that no chosen
point switches), lines are searched; a first layer that was found is kept, with biases from corner.py:

    search.py: breakpoints on lines ──> units.py: hyperplanes of first-layer units
        ──> growth.py: layer after layer; next.py finds the next one through pullback.py and follow.py
        ──> last.py: the output layer by least squares ──> orientation.py: signs of units ──> verified

book.py keeps what is known, regions.py and walk.py choose points in linear regions, precision.py says what float32
hides.
"""
