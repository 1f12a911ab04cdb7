#!/usr/bin/env bash
# What the service needs to be reached from other machines: a private certificate authority, a certificate that it has
# signed, and a token of an administrator.
#   deploy/create-secrets.sh [FOLDER [HOST…]]
# FOLDER (deploy/secrets) must not be there yet. The certificate is for localhost, 127.0.0.1, selector, this machine's
# name, and every HOST, a name or an address.
#
#   ca.key               signs further certificates           keep it off the server
#   admin.token          the administrator's token            SELECTOR_TOKEN="$(cat admin.token)"
#   service/ca.pem       what clients trust                   give it to every client
#   service/server.pem   the certificate, for 397 days        --tls-cert
#   service/server.key   its key                              --tls-key
#   service/tokens.yaml  the tokens' SHA-256 and scopes       --token-file
set -euo pipefail
umask 077

folder=${1:-$(dirname "$0")/secrets}
shift || true
mkdir "$folder"
cd "$folder"
mkdir service

names=DNS:localhost,IP:127.0.0.1,DNS:selector,DNS:$(uname -n)
for host in "$@"; do
    if [[ $host =~ ^[0-9.]+$ || $host == *:* ]]; then
        names+=,IP:$host
    else
        names+=,DNS:$host
    fi
done

new_key() {
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null
}

new_key ca.key
openssl req -x509 -new -key ca.key -days 3650 -subj "/CN=Curriculum Selector private CA" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" -out service/ca.pem

new_key service/server.key
openssl req -new -key service/server.key -subj /CN=selector -out server.csr
openssl x509 -req -in server.csr -CA service/ca.pem -CAkey ca.key -set_serial "0x$(openssl rand -hex 16)" -days 397 \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\n' "$names") -out service/server.pem 2>/dev/null
rm server.csr

openssl rand -hex 32 >admin.token
sha256=$(tr -d '\n' <admin.token | openssl dgst -sha256 -r | cut -d ' ' -f 1)
cat >service/tokens.yaml <<YAML
tokens:
  - name: admin
    sha256: "$sha256"
    scope: admin
YAML

# FOLDER keeps other users of this machine out. service/ is mounted into the container, whose user is another one.
chmod 755 service
chmod 644 service/*
echo "wrote $PWD: certificate for $names"
