"""The web server that the preview Agent runs."""
