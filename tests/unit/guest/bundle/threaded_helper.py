"""A module that can't be forked: it leaves a thread behind."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
