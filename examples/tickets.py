"""An agent of one's own: `runfold worker --app examples/tickets.py:app`."""

from runfold import Agent, App, tool

TICKETS = {"T-7": ("acme", "overdue"), "T-8": ("acme", "open"), "T-9": ("globex", "overdue")}


@tool(side_effect="read")
def list_tickets(customer: str, status: str = "open") -> list[str]:
    """The ids of a customer's tickets.

    Args:
        customer: lower-case name
        status: open, overdue or closed
    """
    return [ticket for ticket, facts in TICKETS.items() if facts == (customer, status)]


app = App([Agent("tickets", model="claude-sonnet-5-5", system="Answer briefly.", tools=[list_tickets])])
