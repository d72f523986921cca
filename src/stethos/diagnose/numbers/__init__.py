"""Numbers that go wrong inside a training: gradients, weights, activations, any recorded series."""
