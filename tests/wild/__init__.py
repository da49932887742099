"""Models of other libraries: opt-in, since their packages lie beside and trying them all takes hours."""
