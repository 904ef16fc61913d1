"""Weights in: `read` opens a file safely, `names` knows what others call a tensor, `load` fits all
to a model; `state` is what the model itself has in a checkpoint.
"""

# Which network of a checkpoint is used: the student, or the teacher that its method keeps.
AUTO, STUDENT, TEACHER = CHOICES = ("auto", "student", "teacher")
# The only network of a checkpoint without a teacher.
MODEL = "model"
