"""The twentieth list: what spoils a training without a word, as public reports have it: gradients that are gathered over several passes, parts that are
frozen, exchanges of tensors that are not contiguous, loaders that are left early, averages of weights, steps that are compiled.
Which six of the nineteen are sealed ``random.Random(2030).sample`` decided over their names."""
