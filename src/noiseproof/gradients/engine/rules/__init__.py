"""One file a kind of layer: how its (activation, error) pairs become per-record gradients."""
