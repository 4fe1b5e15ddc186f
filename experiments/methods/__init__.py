"""Methods under study; each leaves when it has served."""
