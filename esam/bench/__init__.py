"""What does a step cost? Methods timed in turn in one run, their passes counted, their memory measured apart."""
