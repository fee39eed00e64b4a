"""Publishing a project: discover its definitions, check them, bundle its source, upload what is missing. SPEC [D1], [D2]."""
