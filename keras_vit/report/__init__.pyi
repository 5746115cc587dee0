from .model_page import write_report as write_report
from .result_page import write_result_page as write_result_page
