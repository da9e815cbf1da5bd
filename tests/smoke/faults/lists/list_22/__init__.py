"""The twenty-second list: what a judge from outside may choose: exchanges of whole numbers and of asynchronous ones, a hang at a barrier, a slow link, limits of a
user and of one rank, a straggler in one kind of work, samplers and splits, second derivatives, a newer optimizer, a compiler's constant.
Which eight of the twenty-four are sealed ``random.Random(2031).sample`` decided over their names."""
