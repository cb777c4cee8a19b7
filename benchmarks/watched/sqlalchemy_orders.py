"""Orders of a shop in sqlite with the SQLAlchemy ORM."""

import argparse
import random
import tempfile
import time

from sqlalchemy import ForeignKey, create_engine, delete
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=800, help="orders")
steps = parser.parse_args().steps
folder = tempfile.TemporaryDirectory()
engine = create_engine(f"sqlite:///{folder.name}/shop.db")


class Base(DeclarativeBase):
    """The tables."""


class Customer(Base):
    """A customer with orders."""

    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)
    orders: Mapped[list["Order"]] = relationship(back_populates="customer")


class Order(Base):
    """An order with a note for the packer."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str]
    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"))
    customer: Mapped[Customer] = relationship(back_populates="orders")


def place(session, customer, note):
    """Place an order, delete old orders, and return the number of orders of the customer."""
    order = Order(customer=customer, note=note)
    session.add(order)
    session.flush()
    old = delete(Order).where(Order.id < order.id - 100)
    session.execute(old, execution_options={"synchronize_session": False})
    count = len(customer.orders)
    session.commit()
    return count


Base.metadata.create_all(engine)
with Session(engine) as session:
    customers = [Customer() for _ in range(8)]
    session.add_all(customers)
    for number in range(steps):
        count = place(session, customers[number % 8], random.randbytes(12_000).hex())
        if number % 200 == 0:
            print(f"order {number}: the customer has {count} orders", flush=True)
        time.sleep(0.05)
