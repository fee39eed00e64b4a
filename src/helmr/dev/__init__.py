"""`helmr dev`: a whole installation around one project, in one command. [D4]"""
