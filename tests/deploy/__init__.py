"""What is shipped to deploy warmroute: each artifact is read by the program that it is for."""
