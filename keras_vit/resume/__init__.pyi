from .callback import ResumeTraining as ResumeTraining
