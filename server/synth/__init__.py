"""Shape-exact models with random weights: their dimensions, their tensor types, and the files made of them."""
