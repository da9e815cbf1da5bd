"""From whatever a person has of a failed training to its causes: lines as programs printed them, what they stand for, what facts decide."""
