"""Convolutional networks from gradients, layer after layer.

Between two linear regions the affine piece [J, f − Jx] changes by a sum of rank-one terms u⊗r, one for each unit that
switched. The row r of a unit of the first layer is its kernel, at its place in the image; that of a unit of layer l is
linear in its kernel, with coefficients that the layers below give. So:

1. segments.py asks a few points on short segments, so close that fewer units switch than there are outputs.
2. sightings.py takes away what known layers explain, and finds in the row space of what is left the rows that a unit
   of the next layer can have, at every place: each is a sighting of one channel, known up to what was off there.
3. channels.py puts sightings of the same channel together: weight sharing makes one vector fit all of them.
4. features.py expresses answers in the features of the convolutional layers, and finds the row space they share.
5. dense.py finds the dense layers there by the tensor of Jacobians (``relumine.reconstruct.tensor``).
6. method.py compares the whole with the target. Where it stops, student.py fits a student that starts from what is
   proved.

An architecture that is not told is found by architecture.py, from where the rows of single units lie (patches.py).
"""
