"""The driver that runs Computers as containers of a Docker engine on this host [C2].

`driver.py` is the port's; `engine.py` speaks to the engine, `container.py` says how a container is put together, `profile.py` what it may
call, `grafting.py` gives it the Computer's own files as its root, `probes.py` tries all that.
"""
