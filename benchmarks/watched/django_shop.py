"""A Django shop on a local WSGI server for signed orders, and a client that sends them."""

import argparse
import json
import threading
import time
from http.client import HTTPConnection
from wsgiref.simple_server import make_server

import django
from django.conf import settings
from django.core.signing import Signer
from django.core.wsgi import get_wsgi_application
from django.db import connection, models
from django.http import HttpResponseForbidden, JsonResponse
from django.urls import path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1_000, help="requests")
steps = parser.parse_args().steps
databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
settings.configure(ROOT_URLCONF=__name__, MIDDLEWARE=[f"{__name__}.signed"], DATABASES=databases)
django.setup()
local, sign = threading.local(), Signer(key="key of the shop").signature


class Order(models.Model):
    items = models.JSONField()

    class Meta:
        app_label = "shop"

    def total(self):
        return sum(item["count"] * item["price"] for item in self.items)


def signed(get_response):
    local.requests = []

    def middleware(request):
        if request.headers.get("X-Signature") != sign(request.body):
            return HttpResponseForbidden("wrong signature")
        local.requests.append(request)
        response = get_response(request)
        local.requests.pop()
        return response

    return middleware


def send_receipt(order):
    return f"Thank you. Your order {order.pk} costs {order.total()}."


def place(request):
    order = Order.objects.create(**json.loads(request.body))
    Order.objects.filter(pk__lte=order.pk - 50).delete()
    send_receipt(order)
    return JsonResponse({"order": order.pk, "total": order.total()})


urlpatterns = [path("orders/", place)]


def send_orders(server):
    for number in range(steps):
        items = [{"sku": f"part {number} {n}", "count": 2, "price": n} for n in range(600)]
        body = json.dumps({"items": items}).encode()
        client = HTTPConnection(*server.server_address, timeout=60)
        client.request("POST", "/orders/", body, {"X-Signature": sign(body if number % 2 else b"old")})
        client.getresponse().read()
        time.sleep(0.05)
    server.shutdown()


with connection.schema_editor() as editor:
    editor.create_model(Order)
with make_server("127.0.0.1", 0, get_wsgi_application()) as server:
    server.RequestHandlerClass.log_message = lambda *args: None
    threading.Thread(target=send_orders, args=(server,), daemon=True).start()
    server.serve_forever()
