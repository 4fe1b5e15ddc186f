"""Which methods are there? Each is a plan and a finish, and reads like its paper."""
