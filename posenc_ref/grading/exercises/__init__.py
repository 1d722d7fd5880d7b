"""The exercises of the course, one file for each chapter; :mod:`posenc_ref.grading.exercise` is the guide."""
