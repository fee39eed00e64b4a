"""What the Agents share. A file whose name begins with `_` is imported by others alone."""

from helmr import image, template

computer = template(id="team", image=image("team").from_host(), resources={"memory": "256MiB"})
