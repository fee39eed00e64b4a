"""The vocabulary that every part shares: values only, standard library only. Both wings meet here and on the wire."""
