"""What the stages layers, optimizer and device try by tables: operators, layers, optimizers and draws, each beside its formula."""
