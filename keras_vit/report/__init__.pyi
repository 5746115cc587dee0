from .certificate import Certificate as Certificate
from .certificate import export_within_budget as export_within_budget
from .model_page import write_report as write_report
from .result_page import write_result_page as write_result_page
