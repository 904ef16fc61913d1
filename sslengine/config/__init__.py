"""From the command line to one frozen config: compose, check, derive, freeze."""
