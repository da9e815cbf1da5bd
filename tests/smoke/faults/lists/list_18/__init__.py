"""The eighteenth list: operations drawn from torch's public names, ``random.Random(1918)`` (places.py draws them again), the first five of four kinds that a fault can be made of.
Which eight are sealed ``random.Random(1919).sample(range(20), 8)`` decided."""
