"""Episodes: a policy that writes, calls the interpreter, reads the observation and goes on."""
