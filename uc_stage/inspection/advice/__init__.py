"""What the rules look for, by theme: each function takes the facts and gives what it found."""
