"""What runs in a Computer for a stream: a shell on a terminal, copying of files, a tunnel to a port. SPEC [C8]."""
