"""The driver that runs Computers in a user-space kernel, gVisor, and keeps their memory on disk while they sleep [C2], [C6].

`driver.py` is the port's; `bundle.py` says how a sandbox is put together, `staging.py` lays out its files, `runsc.py` calls gVisor's
program, `image.py` judges whether memory may go to disk, `inside.py` holds what is run inside by the host.
"""
