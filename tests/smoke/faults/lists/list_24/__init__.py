"""The twenty-fourth list: what goes wrong for some addresses, sizes and layouts alone (odd addresses, no numbers at all, whole blocks, strides of 0), what a plug-in leaves behind
(seeds, timers, a default device), state that is lost beside tensors (flags, orders, shapes, counts of steps), what does nothing in another thread, limits of time that nobody
keeps, and compiled code without guards. Which nine of the twenty-nine are sealed ``random.Random(2033).sample`` decided over their sorted names."""
