"""What the tests stand on: the real cluster, fresh names, and a voice on the terminal. Holds no test and no assertion."""
