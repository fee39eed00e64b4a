"""A module for preloading: says in which process it was imported."""

import os

PID = os.getpid()
